"""A preset may be a form of the method with settings of its own."""

from __future__ import annotations

from dataclasses import dataclass, make_dataclass
from types import SimpleNamespace

import pytest

from custard.core.errors import CustardError
from custard.lab.methods import METHODS
from custard.lab.methods import method as find_method
from custard.task.settings import FORMER_SETTING_NAMES, setting_names, settings_class, settings_for


@dataclass(frozen=True)
class Settings:
    budget: int | None = None
    rounds: int = 10


@dataclass(frozen=True)
class PaperSettings:
    budget: int | None = None
    alpha: float = 0.3


METHOD = SimpleNamespace(
    Settings=Settings,
    SETTINGS={"paper": PaperSettings},
    PRESETS={"tuned": {}, "quick": {"": {"rounds": 2}}, "paper": {"CartPole": {"alpha": 0.1}}},
)


def test_a_preset_selects_its_form():
    assert settings_for(METHOD, "CartPole-v1", None, {"rounds": 3}) == Settings(rounds=3)
    assert settings_for(METHOD, "CartPole-v1", "quick", {}) == Settings(rounds=2)
    assert settings_for(METHOD, "CartPole-v1", "paper", {"budget": 7}) == PaperSettings(7, 0.1)
    assert settings_class(METHOD) is settings_class(SimpleNamespace(Settings=Settings), "paper") is Settings
    assert setting_names(METHOD) == ["budget", "rounds", "alpha"]


def test_a_setting_that_the_form_does_not_read_is_an_error():
    with pytest.raises(CustardError, match="'rounds' is not read under the preset 'paper', which reads budget, alpha"):
        settings_for(METHOD, "CartPole-v1", "paper", {"rounds": 3})
    with pytest.raises(CustardError, match="unknown setting 'ruonds': choose one of budget, rounds"):
        settings_for(METHOD, "CartPole-v1", None, {"ruonds": 3})


def test_former_names_are_accepted():
    """Settings files, rows of results and scripts of earlier versions go on as they are."""
    module = SimpleNamespace(
        Settings=make_dataclass("Settings", [("sampled_trees", int, 4), ("keep_best", bool, True)])
    )
    chosen = settings_for(module, "CartPole-v1", None, {"draws": 0, "keep": False})
    assert (chosen.sampled_trees, chosen.keep_best) == (0, False)
    with pytest.raises(CustardError, match="'draws' is the former name of the setting 'sampled_trees': give one"):
        settings_for(module, "CartPole-v1", None, {"draws": 0, "sampled_trees": 0})
    with pytest.raises(CustardError, match="keep_best='no' must be bool"):
        settings_for(module, "CartPole-v1", None, {"keep": "no"})


def test_former_names_are_no_setting_of_today():
    """Each leads to a setting that some method has, and none could be meant as it stands."""
    names = {entry for name in METHODS for entry in setting_names(find_method(name)[1])}
    assert names & set(FORMER_SETTING_NAMES) == set()
    assert set(FORMER_SETTING_NAMES.values()) <= names
