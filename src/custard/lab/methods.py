"""Find methods by name; their modules load when used."""

from __future__ import annotations

import ast
import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

from custard.core.errors import CustardError, one_of

__all__ = ["DEFAULT_METHOD", "METHODS", "SUMMARIES", "method", "methods"]

#: name -> module
METHODS: dict[str, str] = {
    "tpi": "custard.solvers.tpi",
    "direct": "custard.solvers.direct",
    "mfec": "custard.solvers.mfec",
    "ppo": "custard.solvers.ppo",
    "dqn": "custard.solvers.dqn",
    "viper-dqn": "custard.baselines.viper",
    "viper-bi": "custard.baselines.viper_bi",
    "cqi": "custard.baselines.cqi",
    "pyeatt": "custard.baselines.pyeatt",
    "cutree": "custard.baselines.cutree",
    "utree": "custard.baselines.utree",
    "moet": "custard.baselines.moet",
    "ddt": "custard.baselines.ddt",
    "icct": "custard.baselines.icct",
    "random": "custard.baselines.random_search",
    "plan": "custard.planning.optimal_tree",
}

DEFAULT_METHOD = "tpi"

#: name -> what the method does and when to use it, in one line
SUMMARIES: dict[str, str] = {
    "tpi": "tree policy iteration, the default: tries trees, keeps what returns more; any environment",
    "direct": "direct search on the return: what tpi does where Python steps; also sums and linear leaves",
    "mfec": "CUSTARD (MFEC): the paper's method with tables, no network; discrete actions",
    "ppo": "CUSTARD (PPO): the paper's method with policy gradients in JAX; discrete and continuous actions",
    "dqn": "CUSTARD (DQN): the paper's method with Q-networks in JAX; discrete actions",
    "viper-dqn": "VIPER: imitates an expert, a DQN that it trains or a model of yours",
    "viper-bi": "VIPER: imitates backward induction; environments with a known model",
    "cqi": "Conservative Q-Improvement: Q-learning in leaves, split where it pays; discrete actions",
    "pyeatt": "Pyeatt and Howe: Q-learning in leaves, split where values change both ways; discrete actions",
    "cutree": "continuous U-Tree: splits by what follows, plans over leaves; discrete actions",
    "utree": "U-Tree: splits by what was seen and done, steps ago with history=; discrete actions",
    "moet": "MoËT: imitates an expert with a mixture of small trees and a linear gate; discrete actions",
    "ddt": "differentiable decision trees: a soft tree by policy gradients in JAX, made crisp; discrete actions",
    "icct": "interpretable continuous control trees: linear leaves by soft actor-critic in JAX; Box actions",
    "random": "random search over trees, nothing learned: the floor every method must clear",
    "plan": "proves the best tree; environments with few states and a known model",
}


def methods() -> dict[str, str]:
    """Return the methods by name, each with one line on what it does.

    >>> import custard
    >>> list(custard.methods())[:2]
    ['tpi', 'direct']
    """
    return {name: SUMMARIES.get(name) or _first_sentence(module) for name, module in METHODS.items()}


def _first_sentence(module: str) -> str:
    """Return the first sentence of a module's docstring, without importing the module."""
    found = importlib.util.find_spec(module)
    if found is None or found.origin is None:
        return ""
    text = ast.get_docstring(ast.parse(Path(found.origin).read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split()).partition(". ")[0].rstrip(".")


def method(name: str | None) -> tuple[str, ModuleType]:
    """Return a method's name and module; None names the default."""
    name = DEFAULT_METHOD if name is None else name
    if name not in METHODS:
        raise CustardError(one_of("method", name, METHODS))
    try:
        return name, importlib.import_module(METHODS[name])
    except ModuleNotFoundError as error:
        raise CustardError(f'{name} needs {error.name}: pip install "custard-rl[neural]"') from None
