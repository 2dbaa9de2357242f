"""Loggers: TensorBoard's files as they are, Weights & Biases and MLflow by what they are called with."""

import struct
import sys
import types
from pathlib import Path

import pytest

import custard
from custard import CustardError
from tests.command_line import call

WORLD = dict(env_kwargs={"m": 4}, seed=0, budget=60_000)
OPTIONS = ("--env-args", "m=4", "--method", "mfec", "--budget", 60_000, "--episodes", 2)
WORDS = ("train", "custard/PrereqWorld-v0", *OPTIONS)


def learn(log, **given):
    return custard.learn("custard/PrereqWorld-v0", "mfec", **WORLD, log=log, **given)


def scalars(directory: Path) -> dict[str, list[tuple[int, float]]]:
    """Return the curves of TensorBoard's event files: records of length, checksum, data, checksum."""
    from tensorboardX.proto.event_pb2 import Event

    curves: dict[str, list[tuple[int, float]]] = {}
    for file in directory.glob("events.*"):
        data, start = file.read_bytes(), 0
        while start < len(data):
            (length,) = struct.unpack_from("<Q", data, start)
            event = Event.FromString(data[start + 12 : start + 12 + length])
            for value in event.summary.value:
                if value.HasField("simple_value"):
                    curves.setdefault(value.tag, []).append((event.step, value.simple_value))
            start += 16 + length
    return curves


def test_tensorboard_files_hold_every_snapshot(tmp_path, capsys):
    pytest.importorskip("tensorboardX")
    out = tmp_path / "run"
    code, _, _ = call(capsys, *WORDS, "--out", out, "--log", "tensorboard", "--json")
    assert code == 0
    run, curves = custard.Run.load(out), scalars(out / "tensorboard")
    steps = [row["steps"] for row in run.metrics]
    assert [step for step, _ in curves["value"]] == steps
    assert curves["value"][-1][1] == -2.0
    assert curves["tree_return"] == [(row["steps"], row["tree_return"]) for row in run.metrics]
    assert curves["best_leaves"][-1] == (steps[-1], 3.0)


class Recorded(types.ModuleType):
    """A package whose functions note how they are called."""

    def __init__(self, name):
        super().__init__(name)
        self.calls = []

    def note(self, name, answer=None):
        def function(*given, **named):
            self.calls.append((name, given, named))
            return answer

        return function

    def of(self, name):
        return [(given, named) for called, given, named in self.calls if called == name]


@pytest.fixture
def wandb(monkeypatch):
    module = Recorded("wandb")
    run = types.SimpleNamespace(**{name: module.note(name) for name in ("log", "finish", "define_metric")})
    module.init = module.note("init", run)
    monkeypatch.setitem(sys.modules, "wandb", module)
    for variable in ("WANDB_MODE", "WANDB_PROJECT", "WANDB_DIR"):
        monkeypatch.delenv(variable, raising=False)
    return module


@pytest.fixture
def mlflow(monkeypatch):
    module = Recorded("mlflow")
    run = types.SimpleNamespace(info=types.SimpleNamespace(run_id="r1"))
    client = types.SimpleNamespace(
        get_experiment_by_name=module.note("get_experiment_by_name"),
        create_experiment=module.note("create_experiment", "7"), create_run=module.note("create_run", run),
        **{name: module.note(name) for name in ("log_batch", "set_terminated")},
    )  # fmt: skip
    module.MlflowClient = lambda: client
    module.entities = types.SimpleNamespace(Param=lambda *given: given, Metric=lambda *given: given)
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.delenv("MLFLOW_EXPERIMENT_NAME", raising=False)
    return module


def test_wandb_is_offline_unless_asked(wandb, tmp_path, monkeypatch):
    run = learn("wandb", out=tmp_path / "run")
    ((_, started),) = wandb.of("init")
    assert (started["mode"], started["project"], started["dir"]) == ("offline", "custard", str(tmp_path / "run"))
    assert started["config"]["settings"]["budget"] == 60_000
    assert started["name"] == "custard-PrereqWorld-v0-mfec-0"
    points = [given[0] for given, _ in wandb.of("log")]
    assert [point["steps"] for point in points] == [row["steps"] for row in run.metrics]
    assert points[-1]["value"] == -2.0
    assert wandb.of("finish") == [((), {"exit_code": 0})]
    monkeypatch.setenv("WANDB_MODE", "online")
    monkeypatch.setenv("WANDB_PROJECT", "mine")
    learn("wandb", out=tmp_path / "other", on_progress=lambda told: True)
    assert [named[key] for _, named in wandb.of("init")[1:] for key in ("mode", "project")] == ["online", "mine"]


def test_mlflow_has_settings_and_metrics(mlflow, tmp_path):
    run = learn(("mlflow", "mlflow"), out=tmp_path / "run")
    assert mlflow.of("create_experiment") == [(("custard",), {})]
    assert mlflow.of("create_run") == [(("7",), {"run_name": "custard-PrereqWorld-v0-mfec-0"})]
    (given, settings), *points = mlflow.of("log_batch")
    assert given == ("r1",)
    assert ("settings.budget", "60000") in settings["params"]
    values = [metric for _, named in points for metric in named["metrics"] if metric[0] == "value"]
    assert [(value, steps) for _, value, _, steps in values] == [(row["value"], row["steps"]) for row in run.metrics]
    assert mlflow.of("set_terminated") == [(("r1", "FINISHED"), {})]


def test_a_logger_that_fails_is_one_line(wandb, mlflow, tmp_path, capsys, monkeypatch):
    def fail(*given, **named):
        raise ConnectionError("no\nserver")

    log_batch = mlflow.MlflowClient().log_batch
    mlflow.MlflowClient().log_batch = lambda run_id, params=(), metrics=(): fail() if metrics else None
    code, _, said = call(capsys, *WORDS, "--out", tmp_path / "a", "--log", "wandb", "mlflow", "--json")
    assert (code, said) == (2, "custard: mlflow raised ConnectionError: no server\n")
    assert mlflow.of("set_terminated") == [(("r1", "FAILED"), {})]
    assert wandb.of("finish") == [((), {"exit_code": 1})]
    wandb.init = fail
    code, _, said = call(capsys, *WORDS, "--out", tmp_path / "b", "--log", "wandb", "--json")
    assert (code, said) == (2, "custard: wandb cannot start a run (ConnectionError: no server)\n")
    mlflow.MlflowClient().log_batch = log_batch
    mlflow.MlflowClient().set_terminated = fail
    with pytest.warns(UserWarning, match=r"mlflow could not end its run \(ConnectionError: no server\)"):
        assert learn("mlflow").tree.n_leaves == 3  # a tree that is learned is not lost


@pytest.mark.parametrize(
    ("name", "package"), [("tensorboard", "tensorboardX"), ("wandb", "wandb"), ("mlflow", "mlflow")]
)
def test_a_missing_package_names_our_extra(name, package, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    code, _, said = call(capsys, *WORDS, "--out", tmp_path / "run", "--log", name)
    assert code == 2
    assert said == f'custard: the logger {name} needs the package {package}: pip install "custard-rl[{name}]"\n'
    assert not (tmp_path / "run").exists()


def test_an_unknown_logger_is_one_line():
    with pytest.raises(CustardError, match=r"unknown logger 'wandbb': .*did you mean 'wandb'"):
        learn("wandbb")
