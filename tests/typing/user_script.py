"""A user's script for type checkers: `mypy` and `make types` fail unless every misspelt keyword below is found.

An ignore that is not needed is an error here, so each line marked with one must be an error by itself.
"""
# pyright: reportUnnecessaryTypeIgnoreComment=true

from typing import assert_type

import custard


def correct() -> None:
    run = custard.learn("CartPole-v1", max_depth=2, seed=0, random_action_share=0.2)
    assert_type(run, custard.Run)
    assert_type(custard.learn("CartPole-v1", "mfec", seeds=3, splits=7), list[custard.Run])
    assert_type(custard.evaluate(run.tree, episodes=10).mean, float)
    custard.learn("CartPole-v1", progress="auto", log="tensorboard", on_progress=lambda told: told.value > 400)
    assert_type(custard.load("runs/cartpole"), custard.Tree)


def misspelt() -> None:
    custard.learn("CartPole-v1", max_detph=2)  # type: ignore[call-overload]
    custard.learn("CartPole-v1", "mfec", split=7)  # type: ignore[call-overload]
    custard.learn("CartPole-v1", max_depth="two")  # type: ignore[call-overload]
    custard.learn("CartPole-v1", progress="yes")  # type: ignore[call-overload]
    custard.learn("CartPole-v1", on_progress=lambda told: told.leafs)  # type: ignore[attr-defined]
    custard.evaluate("tree.json", episode=10)  # type: ignore[call-arg, arg-type]
