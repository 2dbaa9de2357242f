"""Small decision trees that are reinforcement-learning policies: learned, checked, explained and exported.

>>> import custard, gymnasium as gym
>>> env = custard.IBMDP(gym.make("CartPole-v1"), splits=3, low=[-2, -2, -.14, -1.4], high=[2, 2, .14, 1.4])
>>> int(env.action_space.n)
14
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from custard import envs as envs  # registers custard/CartPole-v0, PrereqWorld-v0, PotholeWorld-v0, RobotNav-v0
from custard.core.numba_cache import settle_cache
from custard.core.version import VERSION

if TYPE_CHECKING:
    from custard.core.actions import Actions
    from custard.core.errors import CustardError
    from custard.core.features import Features
    from custard.core.spaces import describe
    from custard.ibmdp.env import IBMDP
    from custard.ibmdp.vector import VectorIBMDP
    from custard.lab.callbacks import Progress
    from custard.lab.learn import learn
    from custard.lab.methods import methods
    from custard.lab.run import Run
    from custard.lab.settings_list import settings
    from custard.task.check import check_env
    from custard.task.evaluate import evaluate
    from custard.task.history import History
    from custard.tree.balance import balance
    from custard.tree.extract import extract
    from custard.tree.loading import load
    from custard.tree.simplify import prune_unvisited, simplify
    from custard.tree.tree import Tree

settle_cache()

__version__ = VERSION
__all__ = [
    "IBMDP",
    "Actions",
    "CustardError",
    "Features",
    "History",
    "Progress",
    "Run",
    "Tree",
    "VectorIBMDP",
    "balance",
    "check_env",
    "describe",
    "evaluate",
    "extract",
    "learn",
    "load",
    "methods",
    "prune_unvisited",
    "settings",
    "simplify",
]

#: Where each public name lives; loaded when first used, so that `import custard` stays quick.
_HOME = {
    "Actions": "core.actions", "CustardError": "core.errors", "Features": "core.features", "IBMDP": "ibmdp.env",
    "VectorIBMDP": "ibmdp.vector", "Tree": "tree.tree", "balance": "tree.balance",
    "check_env": "task.check", "describe": "core.spaces", "History": "task.history",
    "evaluate": "task.evaluate", "extract": "tree.extract", "learn": "lab.learn", "prune_unvisited": "tree.simplify",
    "simplify": "tree.simplify", "Progress": "lab.callbacks", "Run": "lab.run", "load": "tree.loading",
    "methods": "lab.methods", "settings": "lab.settings_list",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'custard' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"custard.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
