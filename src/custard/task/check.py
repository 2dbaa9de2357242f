"""Check an environment: whether it keeps Gymnasium's promises and those a tree learner relies on, and how to mend it.

Like `gymnasium.utils.env_checker`, but for what custard needs: numbers for observations that fit their space, the same
episode for the same seed, honest copies, ends of episodes, rewards that can be added, speed. What is found is an error
(learning refuses it), a warning (learning works, but not as well) or a note.
"""

from __future__ import annotations

import contextlib
import copy
import io
import random
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium as gym
import numpy as np

from custard.core.errors import CustardError, one_line, shortened
from custard.core.spaces import Base, describe
from custard.task.source import DEFAULT_TIME_LIMIT, Source, source

__all__ = ["CheckReport", "Finding", "check_env"]

FINDING_LEVELS = ("error", "warning", "note")
MAX_RANDOM_CHECK_STEPS = 2000
MAX_RANDOM_CHECK_SECONDS = 20.0
MAX_TRIED_ACTIONS = 64  # discrete actions that are each tried once
DETERMINISM_CHECK_STEPS = 50  # of an episode that is run twice
COPY_CHECK_STEPS = 5  # of an environment and its copy
SLOW_STEP_SECONDS = 1.0
MAX_QUICKLY_LEARNED_FEATURES, MAX_QUICKLY_LEARNED_ACTIONS = 200, 100  # from which learning is slow
MAX_TABLE_STATES = 100_000  # combinations of whole-number features that a table can hold
MAX_LEAK_BYTES_PER_STEP = 2000.0


@dataclass(frozen=True)
class Finding:
    """Something about an environment that a person should know."""

    level: str  # "error", "warning" or "note"
    name: str  # short and stable, for programs: "not-deterministic"
    what: str
    fix: str = ""

    def __str__(self) -> str:
        return f"{self.level}: {self.what}" + (f" → {self.fix}" if self.fix else "")


@dataclass
class CheckReport:
    """What `check_env` found, and what custard makes of the environment."""

    env: str
    findings: list[Finding] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def ok(self) -> bool:
        """Whether there is no error."""
        return not any(finding.level == "error" for finding in self.findings)

    def add(self, level: str, name: str, what: str, fix: str = "") -> None:
        """Add a finding, once for each name."""
        if all(finding.name != name for finding in self.findings):
            self.findings.append(Finding(level, name, one_line(what), fix))

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {"env": self.env, "ok": self.ok, "facts": self.facts, "findings": [vars(f) for f in self.findings]}

    def __str__(self) -> str:
        lines = [f"{self.env}: " + ("custard can learn here" if self.ok else "custard cannot learn here yet")]
        lines += [f"  {name.replace('_', ' ')}: {value}" for name, value in self.facts.items()]
        lines += [f"  {f}" for level in FINDING_LEVELS for f in self.findings if f.level == level]
        return "\n".join(lines)


def check_env(
    env: Any,
    *,
    env_kwargs: Mapping[str, Any] | None = None,
    features: Callable[[Any], Sequence[float]] | None = None,
    seed: int = 0,
    steps: int = MAX_RANDOM_CHECK_STEPS,
) -> CheckReport:
    """Check an environment, given by its id, as an object or by a function that makes it.

    `features` is the function that `learn` would get; `steps` how many random steps to take. An environment's own
    mistakes are in the report, never raised.

    >>> report = check_env("CartPole-v1", steps=200)
    >>> report.ok, report.facts["features"]
    (True, 'cart_position, cart_velocity, pole_angle, pole_velocity')
    """
    report = CheckReport(env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__))
    printed, before = io.StringIO(), _process_wide_state()
    with contextlib.redirect_stdout(printed), warnings.catch_warnings(record=True):
        warnings.simplefilter("ignore")
        try:
            try:
                env_source = source(env, env_kwargs)
            finally:
                before |= _global_random_state()  # libraries that are imported when it is first made may draw numbers
            report.env = env_source.name
            base = _describe_spaces(env_source, features, report)
            _check_stepping(env_source, base, report, seed, steps)
        except CustardError as error:
            report.add("error", _error_name(str(error)), str(error), _error_fix(str(error)))
    for what in _changed_keys(before, _process_wide_state()):
        report.add("warning", "changes-process", f"it changes {what} of the whole process", "leave that to the program")
    if printed.getvalue():
        shown = shortened(one_line(printed.getvalue()), 60)
        report.add("note", "prints", f"it prints ({shown!r})", "print nothing, or to standard error")
    return report


# -- what custard makes of it -----------------------------------------------------------------------------------------


def _describe_spaces(env_source: Source, features: Any, report: CheckReport) -> Base:
    """Fill in the facts, and say what is unusual about the spaces."""
    made, is_compiled = env_source.make(), env_source.make_compiled is not None
    base = describe(made, features=features)
    names, kinds = base.features.names, base.features.kinds
    counts = {kind: kinds.count(kind) for kind in dict.fromkeys(kinds)}
    report.facts |= {
        "features": _joined_names(names), "kinds": ", ".join(f"{count} {kind}" for kind, count in counts.items()),
        "actions": f"{base.actions.kind}: {_joined_names(base.actions.names)}",
        "time_limit": env_source.time_limit, "compiled": is_compiled,
    }  # fmt: skip
    can_remake = getattr(env_source.make, "recipe", None) is not None
    report.facts["workers"] = "not needed" if is_compiled else "all cores" if can_remake else "this process"
    if not can_remake and not is_compiled:
        report.add("note", "one-process", "other processes cannot make it: episodes run on one core",
                   "give an id, or a function or class of a module")  # fmt: skip
    whole = base.features.integer.all() and not base.features.unbounded.any()
    states = float(np.prod(base.features.high - base.features.low + 1)) if whole else np.inf
    report.facts["table"] = f"{states:,.0f} states" if states <= MAX_TABLE_STATES else "no"
    core = made.unwrapped
    report.facts["exact_model"] = bool(hasattr(core, "mdp") or hasattr(core, "P"))
    if base.features.unbounded.any():
        missing = [names[c] for c in np.flatnonzero(base.features.unbounded)]
        shown = shortened(", ".join(missing[:4]), 100)
        report.add("note", "unbounded", f"{len(missing)} features have no bounds ({shown})",
                   "random steps estimate them; low= and high= set them")  # fmt: skip
    if (base.features.low == base.features.high).any():
        same = names[int(np.argmax(base.features.low == base.features.high))]
        report.add("warning", "constant-feature", f"feature {same!r} has one value only by its bounds", "leave it out")
    if len(names) > MAX_QUICKLY_LEARNED_FEATURES:
        report.add("warning", "many-features", f"{len(names)} features: a tree asks about one at a time, and learning "
                   "is slow", "pass features=, a function to the few numbers that matter")  # fmt: skip
    if base.actions.discrete and base.actions.n > MAX_QUICKLY_LEARNED_ACTIONS:
        report.add("warning", "many-actions", f"{base.actions.n} discrete actions: each must be tried in many states",
                   "use fewer, or an action vector")  # fmt: skip
    limits = [] if base.actions.low is None or base.actions.high is None else [*base.actions.low, *base.actions.high]
    if not np.isfinite(limits).all():
        report.add("warning", "unbounded-actions", "the action space has no bounds", "give the Box finite bounds")
    if features is None and all(name.startswith("obs") for name in names):
        report.add("note", "unnamed-features", "its features have no names of their own",
                   "set feature_names on the environment, or pass feature_names= (--names in a terminal)")  # fmt: skip
    return base


def _joined_names(names: Sequence[str]) -> str:
    return shortened(", ".join(names[:8]) + (f", … ({len(names)})" if len(names) > 8 else ""), 300)


# -- what it does -----------------------------------------------------------------------------------------------------


def _check_stepping(env_source: Source, base: Base, report: CheckReport, seed: int, steps: int) -> None:
    threads, env = threading.active_count(), env_source.make()
    _check_actions(env, base, report, seed)
    _check_determinism(env_source, env, report, seed)
    _check_copies(env, report, seed)
    _check_random_episodes(env_source, env, base, report, seed, steps)
    try:
        if not env_source.is_single_instance:
            env.unwrapped.close()
    except (Exception, SystemExit) as error:  # an environment may raise anything
        report.add("warning", "close-fails", f"close() raised {type(error).__name__}: {error}", "let close() succeed")
    if threading.active_count() > threads and not env_source.is_single_instance:
        report.add("warning", "threads-left", "it leaves threads running after close()", "join them in close()")


def _check_random_episodes(
    env_source: Source, env: Any, base: Base, report: CheckReport, seed: int, steps: int
) -> None:
    """Run random episodes and report what their observations, rewards, ends and times are like."""
    env.action_space.seed(seed)
    limit, space = env_source.time_limit, env.observation_space
    rewards: list[float] = []
    lengths: list[int] = []
    longest = stepping = 0.0
    n_ended = n_terminated = 0
    memory = _resident_bytes()
    began = time.perf_counter()
    while len(rewards) < steps and time.perf_counter() - began < MAX_RANDOM_CHECK_SECONDS:
        observation, info = env.reset(seed=seed + len(lengths))
        _check_action_mask(base, info, report)
        length, terminated, truncated = 0, False, False
        while not (terminated or truncated) and len(rewards) < steps:
            _check_observation(space, observation, base, report)
            kept = observation.copy() if isinstance(observation, np.ndarray) else None
            action = env.action_space.sample()
            start = time.perf_counter()
            after, reward, terminated, truncated, info = env.step(action)
            took = time.perf_counter() - start
            longest, stepping = max(longest, took), stepping + took
            if kept is not None and not np.array_equal(kept, observation, equal_nan=True):
                report.add("warning", "reused-array", "it changes an array that it handed out before",
                           "return a new array, or a copy, from every reset and step")  # fmt: skip
            if terminated and truncated:
                report.add("note", "both-ends", "it sets terminated and truncated at once", "terminated counts")
            observation, length = after, length + 1
            rewards.append(reward)
            if len(rewards) == steps // 4:
                memory = _resident_bytes()
            if time.perf_counter() - began > MAX_RANDOM_CHECK_SECONDS:
                break
        lengths.append(length)
        n_ended += bool(terminated or truncated)
        n_terminated += bool(terminated)
        _check_observation(space, observation, base, report)
        if limit is not None and length > limit:
            report.add("warning", "limit-not-kept", f"an episode had {length} steps, but the declared limit is {limit}",
                       "declare max_episode_steps as it is, or wrap it in gymnasium.wrappers.TimeLimit")  # fmt: skip
    speed = len(rewards) / max(stepping, 1e-9)
    report.facts |= {
        "steps_per_second": float(f"{speed:.2g}"), "episode_length": f"{np.mean(lengths):.1f} with random actions",
        "reward": f"{min(rewards):g} to {max(rewards):g} per step",
    }  # fmt: skip
    if not n_ended and limit is None and len(rewards) >= min(steps, 1000):
        report.add("warning", "no-end", f"no episode ended within {len(rewards):,} random steps, and no time limit is "
                   f"declared: custard cuts them at {DEFAULT_TIME_LIMIT:,}",
                   "register it with max_episode_steps")  # fmt: skip
    if longest > SLOW_STEP_SECONDS:
        report.add("warning", "slow-step", f"a step took {longest:.1f} seconds", "look for waiting, logging, drawing")
    if not any(rewards):
        report.add("note", "no-reward", "random actions never earn a reward: learning begins blindly",
                   "give a small reward on the way to the goal, or an expert")  # fmt: skip
    elif min(rewards) == max(rewards) and n_terminated == 0:
        # A declared threshold says that some returns are better than others, so that a goal exists.
        report.add("warning" if env_source.reward_threshold is None else "note", "constant-reward",
                   f"with random actions every step earns {rewards[0]:g} and nothing terminates: learning begins "
                   "blindly", "let the reward or the end depend on actions, or give an expert")  # fmt: skip
    elif not 1e-3 <= np.abs([r for r in rewards if r]).mean() <= 1e3:
        report.add("note", "reward-scale", "rewards are far from 1: networks learn from scaled ones",
                   "set zeta in the same unit")  # fmt: skip
    grown = (_resident_bytes() - memory) / max(1, len(rewards) - steps // 4)
    if len(rewards) > steps // 2 and grown > MAX_LEAK_BYTES_PER_STEP:
        report.add("warning", "leaks", f"memory grows by about {grown:,.0f} bytes per step", "keep no history of steps")


def _check_observation(space: gym.Space, observation: Any, base: Base, report: CheckReport) -> None:
    """Report what is unusual about an observation that fits its space; what does not fit, the guard refuses."""
    x = base.observe(observation)  # raises where a feature is NaN
    names, low, high = base.features.names, base.features.low, base.features.high
    outside = np.flatnonzero((x < low) | (x > high))
    if len(outside):
        i = int(outside[0])
        report.add("warning", "outside-bounds", f"feature {names[i]!r} is {x[i]:g}, outside its bounds "
                   f"[{low[i]:g}, {high[i]:g}]", "declare bounds that hold: thresholds lie within them")  # fmt: skip
    if np.isinf(x).any():
        i = int(np.flatnonzero(np.isinf(x))[0])
        report.add("warning", "infinite", f"feature {names[i]!r} is {x[i]}", "give finite numbers")
    given, declared = getattr(observation, "dtype", None), getattr(space, "dtype", None)
    if isinstance(space, gym.spaces.Box):
        if not isinstance(observation, np.ndarray):
            report.add("warning", "not-an-array", f"observations are {type(observation).__name__}, not arrays",
                       "return a NumPy array of the space's dtype")  # fmt: skip
        elif given != declared:
            report.add("note", "other-dtype", f"observations are {given}, but the space says {declared}",
                       "use one of them: thresholds are compared in float64")  # fmt: skip


def _check_action_mask(base: Base, info: Mapping[str, Any], report: CheckReport) -> None:
    mask = info.get("action_mask")
    if mask is not None and base.actions.discrete and np.shape(mask) != (base.actions.n,):
        report.add("error", "mask-shape", f"info['action_mask'] has the shape {np.shape(mask)}, but there are "
                   f"{base.actions.n} actions", "give one entry per action")  # fmt: skip


def _check_actions(env: Any, base: Base, report: CheckReport, seed: int) -> None:
    """Take every discrete action once, or the extremes of an action vector, each after a reset."""
    for action in _actions_to_try(env.action_space, base):
        env.reset(seed=seed)
        try:
            env.step(action)
        except CustardError as error:
            if " raised " not in str(error):
                raise  # the answer is at fault, not the action
            report.add("error", "action-fails", f"action {action!r}: {error}", "accept every action of the space")


def _actions_to_try(space: gym.Space, base: Base) -> Iterator[Any]:
    if base.actions.discrete:
        n = base.actions.n
        for k in range(n) if n <= MAX_TRIED_ACTIONS else np.linspace(0, n - 1, MAX_TRIED_ACTIONS).astype(int).tolist():
            yield k + base.actions.start
        return
    assert base.actions.low is not None
    assert base.actions.high is not None
    if np.isfinite([base.actions.low, base.actions.high]).all():
        for bound in (base.actions.low, base.actions.high):
            yield base.action(bound)


def _check_determinism(env_source: Source, env: Any, report: CheckReport, seed: int) -> None:
    """Report whether the same seed and the same actions give the same episode, in this environment and in another."""
    env.action_space.seed(seed)
    actions = [env.action_space.sample() for _ in range(DETERMINISM_CHECK_STEPS)]
    first = _record_of_episode(env, actions, seed)
    again = _record_of_episode(env, actions, seed)
    report.facts["deterministic"] = first == again
    if first != again:
        same = [a == b for a, b in zip(first, again, strict=False)]
        at = same.index(False) if False in same else len(same)
        report.add("warning", "not-deterministic", f"the same seed and actions give another episode from step {at} on: "
                   "results cannot be repeated, nor resumed", "draw all chance from self.np_random, and reset all "
                   "state in reset(seed=…)")  # fmt: skip
    elif not env_source.is_single_instance and _record_of_episode(env_source.make(), actions, seed) != first:
        report.add("warning", "made-differently", "another environment made the same way gives another episode for "
                   "the same seed", "let nothing depend on when or how often it is made")  # fmt: skip
    if len({_comparable_form(env.reset(seed=seed + k)[0]) for k in range(8)}) == 1:
        report.facts["starts"] = "always the same"


def _record_of_episode(env: Any, actions: Sequence[Any], seed: int) -> list[Any]:
    """Return everything an episode gives, to compare."""
    return [_comparable_form(env.reset(seed=seed)[0]), *_records_of_steps(env, actions)]


def _check_copies(env: Any, report: CheckReport, seed: int) -> None:
    """Report whether a copy of the environment goes on exactly as the original, and independently of it."""
    env.action_space.seed(seed)
    actions = [env.action_space.sample() for _ in range(COPY_CHECK_STEPS)]
    env.reset(seed=seed)
    try:
        copies = [copy.deepcopy(env), copy.deepcopy(env)]
    except (Exception, SystemExit) as error:
        report.facts["copies"] = False
        report.add("note", "no-copies", f"it cannot be copied ({type(error).__name__}: {error}): custard does "
                   "without, other tools may not", "support copy.deepcopy")  # fmt: skip
        return
    first, what = _records_of_steps(env, actions), "a copy does not go on as the original does"
    try:
        report.facts["copies"] = all(_records_of_steps(each, actions) == first for each in copies)
    except (Exception, SystemExit) as error:  # the copy is at fault, not the environment
        report.facts["copies"] = False
        what = f"a copy cannot go on ({one_line(error)})"
    if not report.facts["copies"]:
        report.add("note", "dishonest-copies", f"{what}: it shares or loses some of its state; custard does without, "
                   "other tools may not", "keep all state in attributes that copy.deepcopy copies")  # fmt: skip


def _records_of_steps(env: Any, actions: Sequence[Any]) -> list[Any]:
    """Return everything steps give until the episode ends, to compare."""
    seen = []
    for action in actions:
        result = env.step(action)
        seen.append(_comparable_form(result[:4]))
        if result[2] or result[3]:
            break
    return seen


def _comparable_form(value: Any) -> Any:
    """Return all of a value, to compare; the text of an array is rounded, and that of a large one leaves most out."""
    if isinstance(value, Mapping):
        return tuple((key, _comparable_form(part)) for key, part in value.items())
    if isinstance(value, (tuple, list)):
        return tuple(_comparable_form(part) for part in value)
    array = np.asarray(value) if hasattr(value, "__array__") else None
    if array is None or array.dtype.hasobject:
        return repr(value)
    return array.dtype.str, array.shape, array.tobytes()


# -- the process around it --------------------------------------------------------------------------------------------


def _process_wide_state() -> dict[str, Any]:
    """Return what an environment has no business to change."""
    import os
    import signal

    return _global_random_state() | {
        "the working directory": os.getcwd(),
        "NumPy's error settings": np.geterr(),
        "what Ctrl-C does": signal.getsignal(signal.SIGINT),
    }


def _global_random_state() -> dict[str, Any]:
    state = np.random.get_state(legacy=False)["state"]  # noqa: NPY002
    return {
        "NumPy's global random numbers": (state["key"].tobytes(), int(state["pos"])),
        "Python's global random numbers": random.getstate(),
    }


def _changed_keys(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [what for what, value in before.items() if after[what] != value]


def _resident_bytes() -> int:
    """Return the memory of this process, 0 where that cannot be read."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * 4096
    except (OSError, ValueError, IndexError):
        return 0


#: Parts of the guard's messages, with the name and the fix of a finding.
_KNOWN_ERRORS = (
    ("could not be loaded", "cannot-be-loaded", "mend the module, or its name"),
    ("could not be made", "cannot-be-made", "call its constructor yourself to see more"),
    ("unknown environment", "unknown", "register it, or name its module: 'module:Id-v0'"),
    ("too large to add", "reward-too-large", "divide the rewards"),
    ("as reward", "reward-type", "return a float"),
    ("gave the reward", "reward-not-finite", "return finite rewards"),
    ("gave terminated", "flag-type", "return True or False"),
    ("gave truncated", "flag-type", "return True or False"),
    ("gave NaN", "nan", "never return NaN: a tree cannot compare it"),
    ("does not fit its space", "observation-outside-space", "declare the space that observations really have"),
    ("action space", "action-space", "use Discrete, MultiDiscrete, MultiBinary or a real Box"),
    ("observation space", "observation-space", "pass features=, a function from an observation to numbers"),
    ("must return a dictionary", "info-type", "return a dictionary as info"),
    ("on reset, as Gymnasium", "reset-answer", "return (observation, info) from reset"),
    ("SystemExit", "exits", "raise an exception, or end the episode"),
    (" on reset", "reset-fails", "accept reset(seed=…, options=…) and mend what it raises"),
    (" raised ", "step-fails", "return (observation, reward, terminated, truncated, info) from step"),
    ("features= failed", "features-fail", "mend the features= function"),
)


def _error_name(message: str) -> str:
    return next((name for part, name, _ in _KNOWN_ERRORS if part in message), "refused")


def _error_fix(message: str) -> str:
    return next((fix for part, _, fix in _KNOWN_ERRORS if part in message), "")
