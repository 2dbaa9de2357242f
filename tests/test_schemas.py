"""The JSON Schemas that are shipped describe what custard writes, and refuse what it does not read."""

import copy
import json
from importlib import resources

import gymnasium as gym
import numpy as np
import pytest

import custard
from custard.report.completion import complete_run
from tests.strategies import random_tree

jsonschema = pytest.importorskip("jsonschema", reason="needs jsonschema")


def validator(package, file, part=None):
    schema = json.loads((resources.files(package) / file).read_text())
    chosen = schema if part is None else {"$ref": f"#/$defs/{part}", "$defs": schema["$defs"]}
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(chosen)


@pytest.mark.parametrize("kind", ["discrete", "box", "multi"])
def test_every_tree_fits_its_schema(kind):
    rng, check = np.random.default_rng(0), validator("custard.tree", "tree.schema.json")
    for splits in (0, 1, 5):
        check.validate(random_tree(rng, n=3, splits=splits, kind=kind).to_json())


DAMAGES = [
    lambda tree: tree.pop("format"), lambda tree: tree.update(format="other"), lambda tree: tree.update(version="1"),
    lambda tree: tree.update(version=0), lambda tree: tree.update(features=[]), lambda tree: tree.pop("nodes"),
    lambda tree: tree["features"][0].pop("kind"), lambda tree: tree["features"][0].update(kind="odd"),
    lambda tree: tree["features"][0].update(low="x"), lambda tree: tree["actions"].update(kind="other"),
    lambda tree: tree["actions"].update(names=[]), lambda tree: tree["nodes"].pop("value"),
    lambda tree: tree["nodes"].update(threshold=["x"]), lambda tree: tree["nodes"].update(feature=[0.5]),
    lambda tree: tree["nodes"].update(children_left=[-2]), lambda tree: tree.update(origin=[]),
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_the_schema_refuses_is_not_read(damage):
    base = custard.describe(gym.make("CartPole-v1"))
    tree = custard.Tree.stump(2, 0.0, 0, 1, base.features, base.actions).to_json()
    check = validator("custard.tree", "tree.schema.json")
    assert check.is_valid(tree)
    damaged = copy.deepcopy(tree)
    damage(damaged)
    assert not check.is_valid(damaged)
    with pytest.raises(custard.CustardError):
        custard.Tree.from_json(damaged)


def test_a_run_directory_fits_its_schema(tmp_path):
    kwargs = {"m": 3}
    run = custard.learn("custard/PrereqWorld-v0", "mfec", env_kwargs=kwargs, budget=2000, out=tmp_path / "run")
    complete_run(run, "custard/PrereqWorld-v0", kwargs, 3)
    read = lambda name: json.loads((tmp_path / "run" / name).read_text())  # noqa: E731
    validator("custard.tree", "tree.schema.json").validate(read("tree.json"))
    validator("custard.lab", "run.schema.json", "config").validate(read("config.json"))
    validator("custard.lab", "run.schema.json", "evaluation").validate(read("evaluation.json"))
    with np.load(tmp_path / "run" / "checkpoint" / "state.npz") as state:
        progress = json.loads(str(state["progress"]))
    validator("custard.lab", "run.schema.json", "progress").validate(progress)
    assert not validator("custard.lab", "run.schema.json", "config").is_valid({**read("config.json"), "seed": -1})
