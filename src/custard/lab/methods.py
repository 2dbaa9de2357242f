"""Find methods by name; their modules load when used."""

from __future__ import annotations

import importlib
from types import ModuleType

from custard.core.errors import CustardError, one_of

__all__ = ["DEFAULT", "METHODS", "method"]

#: name -> module
METHODS: dict[str, str] = {
    "tpi": "custard.solvers.tpi",
    "mfec": "custard.solvers.mfec",
    "ppo": "custard.solvers.ppo",
    "dqn": "custard.solvers.dqn",
    "viper-dqn": "custard.baselines.viper",
    "viper-bi": "custard.baselines.viper_bi",
    "random": "custard.baselines.random_search",
    "plan": "custard.planning.optimal_tree",
}

DEFAULT = "tpi"


def method(name: str | None) -> tuple[str, ModuleType]:
    """Return a method's name and module; None names the default."""
    name = name or DEFAULT
    if name not in METHODS:
        raise CustardError(one_of("method", name, METHODS))
    try:
        return name, importlib.import_module(METHODS[name])
    except ModuleNotFoundError as error:
        raise CustardError(f'{name} needs {error.name}: pip install "custard-rl[neural]"') from None
