import json

import pytest

import custard
from custard.commands.train import Command
from custard.core.errors import CustardError
from custard.lab.multi_seed import learn_seeds

PREREQ = "custard/PrereqWorld-v0"


def test_each_seed_gives_what_it_gives_alone(tmp_path):
    given = dict(env_kwargs={"m": 4}, budget=20_000)
    runs = custard.learn(PREREQ, "mfec", seeds=[3, 5], workers=2, out=tmp_path, **given)
    assert [run.config["seed"] for run in runs] == [3, 5]
    for run in runs:
        alone = custard.learn(PREREQ, "mfec", seed=run.config["seed"], **given)
        assert (run.tree, run.raw, run.final) == (alone.tree, alone.raw, alone.final)
        assert (run.value, run.steps, run.message, run.config) == (
            alone.value,
            alone.steps,
            alone.message,
            alone.config,
        )
        assert len(run.metrics) == len(alone.metrics)
        assert custard.Tree.load(run.directory / "tree.json") == alone.tree
    assert sorted(path.name for path in tmp_path.iterdir()) == ["seed-3", "seed-5"]


def test_a_number_of_seeds_counts_from_the_seed():
    runs = custard.learn(PREREQ, "mfec", seed=7, seeds=2, workers=0, env_kwargs={"m": 3}, budget=2000)
    assert [run.config["seed"] for run in runs] == [7, 8]


def test_errors_say_which_seed():
    with pytest.raises(CustardError, match=r"seed 4.*nothing"):
        learn_seeds(PREREQ, "mfec", seeds=[4], workers=0, nothing=1)
    with pytest.raises(CustardError, match="id"):
        learn_seeds(object(), "mfec")
    with pytest.raises(CustardError, match="features"):
        custard.learn(PREREQ, "mfec", seeds=2, features=lambda x: x)
    with pytest.raises(CustardError, match="seeds=0 must be a whole number of at least 1"):
        custard.learn(PREREQ, "mfec", seeds=0)


def test_the_command_runs_several_seeds(tmp_path, capsys):
    command = Command(
        PREREQ, "mfec", seed=2, seeds=2, budget=2000, env_args=("m=3",), out=tmp_path, episodes=2, json=True
    )
    command.run()
    rows = json.loads(capsys.readouterr().out)
    assert [row["out"] for row in rows] == [str(tmp_path / "seed-2"), str(tmp_path / "seed-3")]
    assert all((tmp_path / name / "tree.svg").exists() for name in ("seed-2", "seed-3"))
