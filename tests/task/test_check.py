"""`custard check`: each fault of the misbehaving environments is named, and sane ones have no warning."""

import json
import signal

import gymnasium as gym
import numpy as np
import pytest

import custard
from custard import CustardError
from tests.command_line import call
from tests.hostile import environments


@pytest.fixture(autouse=True)
def as_before():
    """Undo what some of the environments do to the process."""
    errors, handler = np.geterr(), signal.getsignal(signal.SIGINT)
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
