"""Environments that misbehave, each in one way, with what `custard.check_env` must find.

`FAULTS` maps a name to how an environment differs from a sane one (two features, two actions, twenty steps) and to the
name of the finding. Where the finding is an error, learning and judging must refuse the environment in one line.
"""

from __future__ import annotations

import mmap
import os
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces

__all__ = ["FAULTS", "Fault", "make"]


class Fault(NamedTuple):
    """One way to misbehave."""

    finding: str  # that `check_env` must name
    is_error: bool  # whether learning must refuse it
    differs: dict[str, Any]  # from a sane environment: attributes, and functions of the environment


class Faulty(gym.Env):
    """Twenty steps, two features, two actions; `differs` replaces parts of it."""

    observation_space: gym.Space = spaces.Box(-1, 1, (2,))
    action_space: gym.Space = spaces.Discrete(2)

    def __init__(self, **differs: Any) -> None:
        self.differs = differs
        for name in ("observation_space", "action_space", "metadata"):
            if name in differs:
                setattr(self, name, differs[name])
        self.t = 0
        self.notes: list[Any] = []
        self._get("init", None)

    def _get(self, name: str, sane: Any, *given: Any) -> Any:
        part = self.differs.get(name, sane)
        return part(self, *given) if callable(part) else part

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        self._get("on_reset", None)
        answer = self._see(), self._get("info", {})
        return self._get("reset_answer", answer)

    def step(self, action: Any) -> Any:
        self.t += 1
        self._get("on_step", None, action)
        answer = (
            self._see(), self._get("reward", float(np.asarray(action).sum() > 0)),
            self._get("terminated", self.t >= 20), self._get("truncated", False), self._get("info", {}),
        )  # fmt: skip
        return self._get("step_answer", answer)

    def _see(self) -> Any:
        if "see" in self.differs:
            return self._get("see", None)
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)

    def close(self) -> None:
        self._get("on_close", None)

    def __deepcopy__(self, memo: Any) -> Any:
        if "deepcopy" in self.differs:
            return self.differs["deepcopy"](self)
        twin = Faulty(**self.differs)
        twin.t, twin.notes, twin._np_random = self.t, list(self.notes), __import__("copy").deepcopy(self._np_random)
        return twin


def make(name: str) -> Faulty:
    """Make the environment of a fault."""
    return Faulty(**FAULTS[name].differs)


def raising(error: BaseException, at: int = 3) -> Callable[..., None]:
    """Return a function of the environment that raises at a step."""

    def act(env: Faulty, *_: Any) -> None:
        if env.t >= at:
            raise error

    return act


def late(value: Any, sane: Any = None, at: int = 3) -> Callable[[Faulty], Any]:
    """Return a function that gives a value from a step on, and something sane before."""

    def give(env: Faulty) -> Any:
        if env.t < at:
            return env.np_random.uniform(-1, 1, 2).astype(np.float32) if sane is None else sane
        return value

    return give


def flag(value: Any) -> Callable[[Faulty], Any]:
    """Return a function that gives a value at step 3, and otherwise False."""
    return lambda env: value if env.t == 3 else False


class Shared:
    """What copies share although they should not."""

    count = 0


def _share(env: Faulty) -> Faulty:
    return env


def _count_up(env: Faulty, *_: Any) -> None:
    Shared.count += 1


def _unseeded(shape: tuple[int, ...]) -> np.ndarray:
    return np.random.default_rng().uniform(size=shape)


def _use_reused(env: Faulty) -> np.ndarray:
    if not env.notes:
        env.notes.append(np.zeros(2, dtype=np.float32))
    env.notes[0][:] = env.np_random.uniform(-1, 1, 2)
    return env.notes[0]


def _start_thread(env: Faulty, *_: Any) -> None:
    if not env.notes:
        env.notes.append(1)
        threading.Thread(target=time.sleep, args=(3.0,), daemon=True).start()


def _leak(env: Faulty, *_: Any) -> None:
    page = mmap.mmap(-1, 40_960)  # what others have freed is not used for it
    page.write(b"x" * 40_960)
    _LEAKED.append(page)


_LEAKED: list[mmap.mmap] = []


def _forget(env: Faulty) -> Faulty:
    return Faulty(**env.differs)  # a copy that begins anew


def _break(env: Faulty) -> Faulty:
    return Faulty(**env.differs, on_step=raising(AssertionError(), 0))  # a copy that cannot take a step


def _cannot_copy(env: Faulty) -> Any:
    raise TypeError("cannot pickle 'socket' object")


ERROR, WORKS = True, False
PLAIN, THREE = spaces.Box(-1, 1, (2,)), spaces.Discrete(3)

FAULTS: dict[str, Fault] = {
    # observations
    "nan": Fault("nan", ERROR, {"see": late(np.array([0.0, np.nan], dtype=np.float32))}),
    "nan at reset": Fault("nan", ERROR, {"see": np.array([np.nan, 0.0], dtype=np.float32)}),
    "infinite": Fault("outside-bounds", WORKS, {"see": late(np.array([0.0, np.inf], dtype=np.float32))}),
    "too long": Fault("observation-outside-space", ERROR, {"see": late(np.zeros(3, dtype=np.float32))}),
    "too short": Fault("observation-outside-space", ERROR, {"see": late(np.zeros(1, dtype=np.float32))}),
    "a row": Fault("observation-outside-space", ERROR, {"see": late(np.zeros((1, 2), dtype=np.float32))}),
    "a column": Fault("observation-outside-space", ERROR, {"see": late(np.zeros((2, 1), dtype=np.float32))}),
    "a number": Fault("observation-outside-space", ERROR, {"see": late(0.5)}),
    "text": Fault("observation-outside-space", ERROR, {"see": late("state")}),
    "texts": Fault("observation-outside-space", ERROR, {"see": late(["0.1", "0.2"])}),
    "text array": Fault("observation-outside-space", ERROR, {"see": late(np.array(["1", "2"]))}),
    "none": Fault("observation-outside-space", ERROR, {"see": late([None, None])}),
    "nothing": Fault("observation-outside-space", ERROR, {"see": lambda env: None}),
    "objects": Fault("observation-outside-space", ERROR, {"see": late(np.array([object(), 1], dtype=object))}),
    "complex": Fault("observation-outside-space", ERROR, {"see": late(np.array([1j, 0]))}),
    "ragged": Fault("observation-outside-space", ERROR, {"see": late([[1.0], [1.0, 2.0]])}),
    "dates": Fault("observation-outside-space", ERROR, {"see": late(np.array(["2020-01-01"] * 2, dtype="M8[D]"))}),
    "a dictionary": Fault("observation-outside-space", ERROR, {"see": late({"x": 1.0})}),
    "a set": Fault("observation-outside-space", ERROR, {"see": late({1.0, 2.0})}),
    "bytes": Fault("observation-outside-space", ERROR, {"see": late(b"ab")}),
    "outside bounds": Fault("outside-bounds", WORKS, {"see": late(np.array([0.0, 5.0], dtype=np.float32))}),
    "a list": Fault("not-an-array", WORKS, {"see": late([0.0, 0.5])}),
    "float64": Fault("other-dtype", WORKS, {"see": lambda env: env.np_random.uniform(-1, 1, 2)}),
    "whole numbers": Fault("other-dtype", WORKS, {"see": late(np.array([0, 1]))}),
    "reused": Fault("reused-array", WORKS, {"see": _use_reused}),
    "discrete too large": Fault("observation-outside-space", ERROR, {"observation_space": THREE, "see": late(7, 1)}),
    "discrete negative": Fault("observation-outside-space", ERROR, {"observation_space": THREE, "see": late(-1, 1)}),
    "discrete fraction": Fault("observation-outside-space", ERROR, {"observation_space": THREE, "see": late(0.5, 1)}),
    "discrete text": Fault("observation-outside-space", ERROR, {"observation_space": THREE, "see": late("1", 1)}),
    "discrete one-hot": Fault(
        "observation-outside-space", ERROR, {"observation_space": THREE, "see": late(np.array([0, 1, 0]), 1)}
    ),
    "key missing": Fault(
        "observation-outside-space", ERROR,
        {"observation_space": spaces.Dict(a=PLAIN, b=THREE), "see": late({"a": np.zeros(2, dtype=np.float32)},
                                                                        {"a": np.zeros(2, dtype=np.float32), "b": 1})},
    ),
    "key of another shape": Fault(
        "observation-outside-space", ERROR,
        {"observation_space": spaces.Dict(a=PLAIN), "see": late({"a": np.zeros(3)}, {"a": np.zeros(2)})},
    ),
    "no dictionary": Fault(
        "observation-outside-space", ERROR, {"observation_space": spaces.Dict(a=THREE), "see": late(1, {"a": 1})}
    ),
    "tuple too short": Fault(
        "observation-outside-space", ERROR,
        {"observation_space": spaces.Tuple((THREE, THREE)), "see": late((1,), (1, 2))},
    ),
    "multi-discrete too large": Fault(
        "observation-outside-space", ERROR,
        {"observation_space": spaces.MultiDiscrete([2, 3]), "see": late(np.array([1, 3]), np.array([1, 2]))},
    ),
    "multi-binary two": Fault(
        "observation-outside-space", ERROR,
        {"observation_space": spaces.MultiBinary(2), "see": late(np.array([1, 2]), np.array([1, 0]))},
    ),
    # spaces
    "text space": Fault("observation-space", ERROR, {"observation_space": spaces.Text(5), "see": "abc"}),
    "graph space": Fault("observation-space", ERROR, {"observation_space": spaces.Graph(PLAIN, None), "see": None}),
    "sequence space": Fault("observation-space", ERROR, {"observation_space": spaces.Sequence(PLAIN), "see": ()}),
    "text actions": Fault("action-space", ERROR, {"action_space": spaces.Text(3)}),
    "dictionary actions": Fault("action-space", ERROR, {"action_space": spaces.Dict(a=THREE)}),
    "whole box actions": Fault("action-space", ERROR, {"action_space": spaces.Box(0, 3, (2,), dtype=np.int64)}),
    "constant feature": Fault(
        "constant-feature", WORKS,
        {"observation_space": spaces.Box(np.array([0.0, -1.0]), np.array([0.0, 1.0]), dtype=np.float64),
         "see": lambda env: np.array([0.0, env.np_random.uniform(-1, 1)])},
    ),
    "many features": Fault(
        "many-features", WORKS,
        {"observation_space": spaces.Box(-1, 1, (300,)), "see": lambda env: np.zeros(300, dtype=np.float32)},
    ),
    "many actions": Fault("many-actions", WORKS, {"action_space": spaces.Discrete(1000)}),
    "no bounds": Fault("unbounded", WORKS, {"observation_space": spaces.Box(-np.inf, np.inf, (2,))}),
    "no action bounds": Fault("unbounded-actions", WORKS, {"action_space": spaces.Box(-np.inf, np.inf, (1,))}),
    # rewards
    "reward nan": Fault("reward-not-finite", ERROR, {"reward": late(np.nan, 0.0)}),
    "reward infinite": Fault("reward-not-finite", ERROR, {"reward": late(np.inf, 0.0)}),
    "reward huge": Fault("reward-too-large", ERROR, {"reward": late(1.7e308, 0.0)}),
    "reward 1e300": Fault("reward-too-large", ERROR, {"reward": late(-1e300, 0.0)}),
    "reward text": Fault("reward-type", ERROR, {"reward": late("1.5", 0.0)}),
    "reward bytes": Fault("reward-type", ERROR, {"reward": late(b"1.5", 0.0)}),
    "reward none": Fault("step-fails", ERROR, {"reward": late([None], 0.0)}),
    "reward vector": Fault("step-fails", ERROR, {"reward": late(np.array([1.0, 2.0]), 0.0)}),
    "reward dictionary": Fault("step-fails", ERROR, {"reward": late({"r": 1.0}, 0.0)}),
    "reward complex": Fault("step-fails", ERROR, {"reward": late(1j, 0.0)}),
    "reward never": Fault("no-reward", WORKS, {"reward": 0.0}),
    "reward tiny": Fault("reward-scale", WORKS, {"reward": lambda env: 1e-9 * (1 + env.t)}),
    "reward constant": Fault(
        "constant-reward", WORKS, {"reward": 1.0, "terminated": False, "truncated": lambda env: env.t >= 20}
    ),
    # ends
    "terminated text": Fault("flag-type", ERROR, {"terminated": flag("no")}),
    "terminated array": Fault("flag-type", ERROR, {"terminated": flag(np.array([True, False]))}),
    "terminated none": Fault("flag-type", ERROR, {"terminated": flag(None)}),
    "terminated number": Fault("flag-type", ERROR, {"terminated": flag(0.5)}),
    "terminated two": Fault("flag-type", ERROR, {"terminated": flag(2)}),
    "truncated text": Fault("flag-type", ERROR, {"truncated": flag("False")}),
    "truncated list": Fault("flag-type", ERROR, {"truncated": flag([])}),
    "both": Fault("both-ends", WORKS, {"truncated": lambda env: env.t >= 20}),
    "endless": Fault("no-end", WORKS, {"terminated": False}),
    # answers
    "old step": Fault("step-fails", ERROR, {"step_answer": lambda env: (np.zeros(2), 0.0, False, {})}),
    "step none": Fault("step-fails", ERROR, {"step_answer": lambda env: None}),
    "old reset": Fault("reset-answer", ERROR, {"reset_answer": lambda env: np.zeros(2, dtype=np.float32)}),
    "reset list": Fault("reset-answer", ERROR, {"reset_answer": lambda env: [np.zeros(2), {}]}),
    "reset without info": Fault("reset-answer", ERROR, {"reset_answer": lambda env: (np.zeros(2), None)}),
    "info none": Fault("info-type", ERROR, {"info": lambda env: None if env.t == 3 else {}}),
    "info list": Fault("info-type", ERROR, {"info": lambda env: [] if env.t == 3 else {}}),
    "mask of another length": Fault("mask-shape", WORKS, {"info": {"action_mask": np.ones(5, dtype=bool)}}),
    # raising
    "raises": Fault("step-fails", ERROR, {"on_step": raising(RuntimeError("out of\ncoal"))}),
    "raises on reset": Fault("reset-fails", ERROR, {"on_reset": raising(RuntimeError("no key"), 0)}),
    "exits": Fault("exits", ERROR, {"on_step": raising(SystemExit(0))}),
    "exits silently": Fault("exits", ERROR, {"on_step": raising(SystemExit())}),
    "exits on reset": Fault("exits", ERROR, {"on_reset": raising(SystemExit(0), 0)}),
    "exits when made": Fault("cannot-be-made", ERROR, {"init": raising(SystemExit(0), 0)}),
    "raises when made": Fault("cannot-be-made", ERROR, {"init": raising(OSError("no display"), 0)}),
    "runs out of memory": Fault("step-fails", ERROR, {"on_step": raising(MemoryError("12 TiB"))}),
    "recurses": Fault("step-fails", ERROR, {"on_step": lambda env, action: env.step(action)}),
    "raises a group": Fault("step-fails", ERROR, {"on_step": raising(ExceptionGroup("two", [ValueError("a")]))}),
    "stops iterating": Fault("step-fails", ERROR, {"on_step": raising(StopIteration())}),
    "asserts": Fault("step-fails", ERROR, {"on_step": raising(AssertionError())}),
    "says much": Fault("step-fails", ERROR, {"on_step": raising(ValueError("x" * 10**6))}),
    "refuses an action": Fault(
        "action-fails", ERROR, {"on_step": lambda env, action: raising(ValueError("no"), 0)(env) if action else None}
    ),
    "close fails": Fault("close-fails", WORKS, {"on_close": raising(RuntimeError("stuck"), 0)}),
    "close exits": Fault("close-fails", WORKS, {"on_close": raising(SystemExit(0), 0)}),
    # chance and state
    "global numpy chance": Fault(
        "not-deterministic", WORKS, {"see": lambda env: np.random.uniform(-1, 1, 2).astype(np.float32)}  # noqa: NPY002
    ),
    "global chance": Fault(
        "not-deterministic", WORKS, {"see": lambda env: np.array([random.random(), 0.0], dtype=np.float32)}
    ),
    "operating system's chance": Fault(
        "not-deterministic", WORKS, {"see": lambda env: np.array([os.urandom(1)[0] / 256, 0.0], dtype=np.float32)}
    ),
    "chance in the last digits": Fault(
        "not-deterministic", WORKS,
        {"observation_space": spaces.Box(0, 1, (2,), np.float64), "see": lambda env: 0.5 + 1e-12 * _unseeded((2,))},
    ),
    "chance within a picture": Fault(
        "not-deterministic", WORKS,
        {"observation_space": spaces.Box(0, 1, (40, 40)),
         "see": lambda env: np.pad(_unseeded((20, 20)), 10).astype(np.float32)},
    ),
    "the clock": Fault(
        "not-deterministic", WORKS, {"see": lambda env: np.array([time.perf_counter() % 1, 0.0], dtype=np.float32)}
    ),
    "never reset": Fault(
        "not-deterministic", WORKS,
        {"on_step": _count_up, "see": lambda env: np.array([Shared.count % 97 / 97, 0.0], dtype=np.float32)},
    ),
    "copies share": Fault("dishonest-copies", WORKS, {"deepcopy": _share}),
    "copies forget": Fault("dishonest-copies", WORKS, {"deepcopy": _forget}),
    "copies break": Fault("dishonest-copies", WORKS, {"deepcopy": _break}),
    "no copies": Fault("no-copies", WORKS, {"deepcopy": _cannot_copy}),
    # the process
    "seeds everything": Fault("changes-process", WORKS, {"on_reset": lambda env: np.random.seed(0)}),  # noqa: NPY002
    "sets numpy errors": Fault("changes-process", WORKS, {"on_step": lambda env, action: np.seterr(under="warn")}),
    "takes ctrl-c": Fault(
        "changes-process", WORKS, {"on_reset": lambda env: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    ),
    "prints": Fault("prints", WORKS, {"on_step": lambda env, action: print("step", env.t)}),  # noqa: T201
    "threads": Fault("threads-left", WORKS, {"on_step": _start_thread}),
    "leaks": Fault("leaks", WORKS, {"on_step": _leak}),
    "slow": Fault("slow-step", WORKS, {"on_step": lambda env, action: time.sleep(1.05) if env.t == 13 else None}),
}  # fmt: skip
