"""`custard check`: each fault of the misbehaving environments is named, and sane ones have no warning."""

import json
import signal
import time

import gymnasium as gym
import numpy as np
import pytest

import custard
from custard import CustardError
from tests.command_line import call
from tests.hostile import environments


@pytest.fixture(autouse=True)
def as_before():
    """Undo what some of the environments do to the process, before (other tests may have run them) and afterwards."""
    errors, handler = np.geterr(), signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    np.random.seed(1)  # noqa: NPY002
    yield
    np.seterr(**errors)
    signal.signal(signal.SIGINT, handler)
    environments._LEAKED.clear()


@pytest.mark.parametrize("name", environments.FAULTS)
def test_each_fault_is_named(name):
    fault = environments.FAULTS[name]
    report = custard.check_env(environments.make, env_kwargs={"name": name}, steps=2000 if name == "leaks" else 400)
    found = {finding.name: finding for finding in report.findings}
    assert fault.finding in found, str(report)
    assert report.ok == (found[fault.finding].level != "error")
    assert all(len(str(finding)) < 3000 and "\n" not in str(finding) for finding in report.findings)
    if fault.finding != "refused":
        assert found[fault.finding].fix
    json.dumps(report.to_json())


def test_a_sane_environment_has_neither_error_nor_warning():
    report = custard.check_env(environments.Faulty, steps=400)
    assert {finding.level for finding in report.findings} <= {"note"}, str(report)
    assert report.facts["deterministic"]
    assert report.facts["copies"]


@pytest.mark.parametrize("name", [name for name, fault in environments.FAULTS.items() if fault.is_error])
def test_what_is_an_error_is_refused_in_one_line_while_learning(name):
    with pytest.raises(CustardError) as refused:
        custard.learn(environments.make, "mfec", env_kwargs={"name": name}, budget=600, max_depth=1)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 2500


@pytest.mark.parametrize("env", ["CartPole-v1", "FrozenLake-v1", "custard/PrereqWorld-v0", "Pendulum-v1"])
def test_registered_environments_pass(env):
    report = custard.check_env(env, steps=300)
    assert report.ok, str(report)
    assert not [finding for finding in report.findings if finding.level == "error"]
    assert report.facts["steps_per_second"] > 0


def test_the_command(capsys):
    code, out, _ = call(capsys, "check", "FrozenLake-v1", "--steps", "100", "--json")
    assert code == 0
    data = json.loads(out)
    assert data["ok"]
    assert data["facts"]["features"] == "row, column"
    code, out, _ = call(capsys, "check", "NoSuch-v0")
    assert code == 1
    assert "unknown environment 'NoSuch-v0'" in out


def test_a_function_of_features_is_checked_too():
    report = custard.check_env(gym.make("CartPole-v1"), features=lambda seen: [1 / 0])
    assert report.findings[0].name == "features-fail"


@pytest.mark.parametrize("env", ["LunarLander-v3", "BipedalWalkerHardcore-v3", "CarRacing-v3"])
def test_a_copy_that_cannot_go_on_is_no_error_of_the_environment(env):
    pytest.importorskip("Box2D")
    report = custard.check_env(env, steps=60)
    assert report.ok, str(report)
    assert not report.facts["copies"]
    assert [finding.level for finding in report.findings if finding.name == "dishonest-copies"] == ["note"]
    assert "starts" not in report.facts  # also where an observation is a picture that begins differently in its middle


@pytest.mark.parametrize("env", ["Acrobot-v1", "MountainCar-v0"])
def test_a_goal_that_random_actions_miss_is_no_fault(env):
    report = custard.check_env(env, steps=600)
    assert [(finding.level, finding.name) for finding in report.findings] == [("note", "constant-reward")]


def test_chance_drawn_once_when_it_is_first_made_is_no_fault():
    """Libraries that are imported then do so, JAX for example."""
    drawn = []

    def make():
        if not drawn:
            drawn.append(np.random.uniform())  # noqa: NPY002
        return environments.Faulty()

    report = custard.check_env(make, steps=100)
    assert "changes-process" not in {finding.name for finding in report.findings}


def test_a_slow_episode_without_end_is_cut(monkeypatch):
    monkeypatch.setattr("custard.task.check.MAX_RANDOM_CHECK_SECONDS", 0.1)
    env = environments.Faulty(terminated=False, on_step=lambda env, action: time.sleep(0.002))
    report = custard.check_env(env, steps=1000)
    assert float(report.facts["episode_length"].split()[0]) < 500


def test_names_left_out_are_counted():
    facts = custard.check_env("custard/PrereqWorld-v0", steps=50).facts
    assert facts["actions"].endswith(", make_7, … (10)")
    assert facts["features"].endswith(", has_7, … (10)")
