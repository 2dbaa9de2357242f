"""A preset may be a form of the method with settings of its own."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from custard.core.errors import CustardError
from custard.task.settings import setting_names, settings_class, settings_for


@dataclass(frozen=True)
class Settings:
    budget: int | None = None
    cycle: int = 10


@dataclass(frozen=True)
class PaperSettings:
    budget: int | None = None
    alpha: float = 0.3


METHOD = SimpleNamespace(
    Settings=Settings,
    SETTINGS={"paper": PaperSettings},
    PRESETS={"tuned": {}, "quick": {"": {"cycle": 2}}, "paper": {"CartPole": {"alpha": 0.1}}},
)


def test_a_preset_selects_its_form():
    assert settings_for(METHOD, "CartPole-v1", None, {"cycle": 3}) == Settings(cycle=3)
    assert settings_for(METHOD, "CartPole-v1", "quick", {}) == Settings(cycle=2)
    assert settings_for(METHOD, "CartPole-v1", "paper", {"budget": 7}) == PaperSettings(7, 0.1)
    assert settings_class(METHOD) is settings_class(SimpleNamespace(Settings=Settings), "paper") is Settings
    assert setting_names(METHOD) == ["budget", "cycle", "alpha"]


def test_a_setting_that_the_form_does_not_read_is_an_error():
    with pytest.raises(CustardError, match="'cycle' is not read under the preset 'paper', which reads budget, alpha"):
        settings_for(METHOD, "CartPole-v1", "paper", {"cycle": 3})
    with pytest.raises(CustardError, match="unknown setting 'cycel': choose one of budget, cycle"):
        settings_for(METHOD, "CartPole-v1", None, {"cycel": 3})
