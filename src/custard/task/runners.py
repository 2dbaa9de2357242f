"""Step environments: start episodes by seed, step them, report what happened.

Whole episodes of a finished policy, to judge it:

* `run_episodes` runs one episode per seed. It chooses between compiled rollouts of a tree and `step_episodes`, which
  steps several environments side by side from Python. An episode depends on its seed and the policy alone, so results
  do not depend on how many run at a time, nor on what runs them.

Episodes of a policy that learns meanwhile:

* `custard.task.compiled_episodes` holds compiled environments for a solver's own compiled loop.
* `PythonEpisodes` steps one Gymnasium environment. Every episode has a seed of its own, so that a run can be resumed
  although the environment's state cannot be stored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from custard.core.errors import CustardError
from custard.core.spaces import Base, FeaturesArgument, describe
from custard.ibmdp.base_environments import BaseEnvironments, base_environments_of
from custard.task.episodes import EpisodeRequest, observer
from custard.task.history import remembered
from custard.task.problem import Problem
from custard.task.source import Source
from custard.task.vector_episodes import play_side_by_side, require_seeds
from custard.tree.tree import Tree

if TYPE_CHECKING:
    from custard.task.compiled_episodes import CompiledEpisodes

__all__ = [
    "MAX_LEARNING_ENVIRONMENTS", "EpisodeResults", "Policy", "PythonEpisodes", "make_episodes", "require_fit",
    "run_episodes", "step_episodes", "visited_states",
]  # fmt: skip

Policy = Tree | Callable[[np.ndarray], Any]  # a tree, or a function from features [B, n] to actions [B] or [B, k]

MAX_STEPPED_ENVIRONMENTS = 16  # side by side, where Python steps them
MAX_LEARNING_ENVIRONMENTS = 8  # the same where a policy learns meanwhile


class EpisodeResults(NamedTuple):
    """What came of episodes, in the order of their seeds."""

    returns: np.ndarray  # [episodes]
    lengths: np.ndarray  # [episodes] int64, steps
    truncated: np.ndarray  # [episodes] bool: cut by a time limit
    states: list[np.ndarray] | None = None  # per episode [length, n]: the features the policy acted on, if asked for


def run_episodes(
    policy: Policy,
    source: Source,
    seeds: np.ndarray,
    *,
    features: FeaturesArgument = None,
    max_steps: int | None = None,
    num_envs: int = 1024,
    record_states: bool = False,
    gamma: float = 1.0,
) -> EpisodeResults:
    """Run one episode per seed.

    policy         a tree or a function from features to actions
    source         makes the environments
    seeds          [episodes] int64, one environment seed per episode
    features       the user's function from an observation to features, if there is one
    max_steps      steps after which an episode is cut; by default 10,000 where the environment has no time limit
    num_envs       environments side by side; where Python steps them at most 16
    record_states  whether to report the states met
    gamma          discount of the returns, per step
    """
    source, features = remembered(policy, source, features)
    is_compiled = source.make_compiled is not None
    if source.vector is not None:
        return _run_side_by_side(policy, source, seeds, features, max_steps, record_states, gamma)
    venv = source.make_vec(min(len(seeds), num_envs if is_compiled else MAX_STEPPED_ENVIRONMENTS))
    try:
        base = describe(venv, features=features)
        if isinstance(policy, Tree):
            require_fit(policy, base)
            is_plain = features is None and not record_states and gamma == 1.0
            if is_compiled and is_plain and policy.keep_used_sums().features.is_linear:
                from custard.envs.pcg64 import streams  # compiled code loads when it is used
                from custard.task.compiled_rollouts import rollouts_for, world_of

                world = world_of(venv, max_steps)  # type: ignore[arg-type]
                return EpisodeResults(*rollouts_for(policy)(policy, world, streams(seeds.tolist()))[:3])
            n_raw, predict = policy.features.n_raw, policy.predict
            act: Callable[[np.ndarray], Any] = lambda x: predict(x[:, :n_raw])  # noqa: E731
        else:
            act = policy
        limit = source.max_steps(max_steps)
        return step_episodes(act, base_environments_of(venv, base), seeds, limit, record_states, gamma)
    finally:
        if not source.is_single_instance:
            venv.close()


def _run_side_by_side(
    policy: Policy,
    source: Source,
    seeds: np.ndarray,
    features: FeaturesArgument,
    max_steps: int | None,
    record: bool,
    gamma: float,
) -> EpisodeResults:
    """Run one episode per seed in the user's vector environment."""
    assert source.vector is not None
    base = describe(source.vector, features=features)
    require_seeds(source.vector, base, source.name)
    limit = source.max_steps(max_steps)
    if isinstance(policy, Tree):
        require_fit(policy, base)
        tree = policy
        act: Callable[[np.ndarray], Any] = lambda x: [tree.act(row) for row in x]  # noqa: E731
    else:
        act, tree = policy, Tree.leaf(base.actions.start, base.features, base.actions)
    request = EpisodeRequest(tree, seeds, 0.0, limit, record, gamma)
    runs = play_side_by_side(source.vector, base, act, request, source.name)
    states = np.split(runs.states, np.cumsum(runs.lengths)[:-1]) if record else None
    return EpisodeResults(runs.returns, runs.lengths, runs.truncated, states)


def visited_states(
    act: Callable[[np.ndarray], Any], problem: Problem, seeds: np.ndarray, max_steps: int | None
) -> tuple[np.ndarray, EpisodeResults]:
    """Run one episode per seed; return the states [N, n] visited, in the order they were acted on, and the results."""
    visited: list[np.ndarray] = []

    def record(x: np.ndarray) -> Any:
        visited.append(x.copy())
        return act(x)

    results = run_episodes(record, problem.source, seeds, features=problem.encoder, max_steps=max_steps)
    return np.concatenate(visited), results


def step_episodes(
    act: Callable[[np.ndarray], Any],
    environments: BaseEnvironments,
    seeds: np.ndarray,
    max_steps: int | None,
    record_states: bool = False,
    gamma: float = 1.0,
) -> EpisodeResults:
    """Run one episode per seed in environments that exist already.

    act            function from features [B, n] to actions [B] or [B, k]
    environments   the environments; an episode starts in whichever is free
    seeds          [episodes] int64
    max_steps      steps after which an episode is cut; None leaves that to the environment
    record_states  whether to report the states met
    gamma          discount of the returns, per step
    """
    episodes, slots = len(seeds), len(environments.reward)
    returns, weights, lengths = np.zeros(episodes), np.ones(episodes), np.zeros(episodes, dtype=np.int64)
    cut = np.zeros(episodes, dtype=bool)
    states: list[list[np.ndarray]] = [[] for _ in range(episodes)]
    episode_of = np.arange(slots)  # which episode each slot runs
    active = np.arange(min(slots, episodes))
    n_started = len(active)
    no_slots = np.arange(0)
    _start_episodes(environments, active, seeds[episode_of[active]])
    while len(active):
        running = episode_of[active]
        x = environments.x[active]
        actions = np.asarray(act(x))
        if actions.shape[:1] != (len(active),):
            given = "one answer" if actions.ndim == 0 else f"{len(actions)} actions"
            raise CustardError(f"the policy returned {given} for {len(active)} observations: one action each is needed")
        if record_states:
            for k, row in zip(running.tolist(), x, strict=True):
                states[k].append(row)
        environments.move(active, actions, no_slots)
        returns[running] += weights[running] * environments.reward[active]
        weights[running] *= gamma
        lengths[running] += 1
        terminated = environments.terminated[active]
        truncated = environments.truncated[active] & ~terminated
        if max_steps is not None:
            truncated |= ~terminated & (lengths[running] >= max_steps)
        cut[running] = truncated
        ended = active[terminated | truncated]
        if len(ended):
            restarted = ended[: max(0, episodes - n_started)]
            episode_of[restarted] = np.arange(n_started, n_started + len(restarted))
            n_started += len(restarted)
            active = np.setdiff1d(active, ended[len(restarted) :], assume_unique=True)
            if len(restarted):
                _start_episodes(environments, restarted, seeds[episode_of[restarted]])
    met = [np.array(rows) for rows in states] if record_states else None
    return EpisodeResults(returns, lengths, cut, met)


def _start_episodes(environments: BaseEnvironments, slots: np.ndarray, seeds: np.ndarray) -> None:
    """Start an episode with its own seed in each of some slots."""
    seed_of_slot: list[int | None] = [None] * len(environments.reward)
    mask = np.zeros(len(environments.reward), dtype=bool)
    mask[slots] = True
    for i, seed in zip(slots.tolist(), seeds.tolist(), strict=True):
        seed_of_slot[i] = seed
    environments.reset(seed_of_slot, {"reset_mask": mask})


class PythonEpisodes:
    """One Gymnasium environment stepped from Python.

    Episode k of a run starts from the seed that `SeedSequence([*run seed, k])` gives. Whoever steps always finishes an
    episode before a checkpoint, so `arrays` is all that is needed to resume.
    """

    def __init__(
        self, problem: Problem, *seed: int, max_steps: int | None = None, limit_terminates: bool = False
    ) -> None:
        """Make the environment.

        problem           what is to be solved
        seed              the run's seed, one number or several
        max_steps         steps after which an episode is cut; None leaves that to the environment
        limit_terminates  whether an episode that the environment truncates counts as terminated
        """
        self.env: Any = problem.source.make()
        self.base, self.observe = problem.base, observer(self.env, problem.base)
        self.max_steps, self.limit_terminates = max_steps, limit_terminates
        self.seed_and_episodes = np.array([*seed, 0], dtype=np.int64)  # the run's seed, and how many episodes began
        self.length, self.total = 0, 0.0  # steps and return of the present episode

    def reset(self, seed: int | None = None) -> np.ndarray:
        """Start the next episode, or one with a given seed, and return its first features [n]."""
        if seed is None:
            seed = int(np.random.SeedSequence(self.seed_and_episodes.tolist()).generate_state(1)[0])
            self.seed_and_episodes[-1] += 1
        self.length, self.total = 0, 0.0
        return self.observe(self.env.reset(seed=seed)[0])

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool]:
        """Take an action as a leaf has it and return features [n], reward, terminated, truncated."""
        observation, reward, terminated, truncated, _ = self.env.step(self.base.action(action))
        self.length += 1
        self.total += reward
        is_cut = truncated or (self.max_steps is not None and self.length >= self.max_steps)
        terminated = bool(terminated or (truncated and self.limit_terminates))
        return self.observe(observation), reward, terminated, bool(is_cut)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return what a checkpoint stores: the arrays themselves, not copies."""
        return {"env.seed_and_episodes": self.seed_and_episodes}


def make_episodes(
    problem: Problem, seed: int, *, max_steps: int, limit_terminates: bool
) -> CompiledEpisodes | PythonEpisodes:  # fmt: skip
    """Return one environment to learn in, compiled where that is possible; see `PythonEpisodes` for the arguments."""
    if not problem.is_compiled:
        return PythonEpisodes(problem, seed, max_steps=max_steps, limit_terminates=limit_terminates)
    from custard.task.compiled_episodes import make_compiled_episodes  # compiled code loads when it is used

    return make_compiled_episodes(problem, seed, limit_terminates=limit_terminates)


def require_fit(tree: Tree, base: Base) -> None:
    """Raise unless a tree's features and actions are the environment's."""
    asked, given = tree.features.raw, base.features.raw
    renamed = tree.origin.get("feature_names") or _are_numbered(asked.names)  # by the user at learning, or since
    renamed = renamed and asked.n == given.n
    if asked.names != given.names and not renamed:
        ours, theirs = _joined_names(asked.names), _joined_names(given.names)
        raise CustardError(f"the tree asks about {ours}, but the environment has {theirs}")
    if tree.actions.kind != base.actions.kind or len(tree.actions.names) != len(base.actions.names):
        ours, theirs = _joined_names(tree.actions.names), _joined_names(base.actions.names)
        raise CustardError(
            f"the tree decides among {ours} ({tree.actions.kind}), but the environment's actions are {theirs} "
            f"({base.actions.kind})"
        )
    if tree.actions.start != base.actions.start:
        raise CustardError(
            f"the tree's actions are numbered from {tree.actions.start}, the environment's from {base.actions.start}"
        )


def _are_numbered(names: Sequence[str]) -> bool:
    """Return whether features are called obs_0, obs_1, …: the environment had no names for them."""
    return all(name == f"obs_{k}" for k, name in enumerate(names))


def _joined_names(names: Sequence[str]) -> str:
    """Join at most six names, then say how many there are."""
    return ", ".join(names[:6]) + (f", … ({len(names)})" if len(names) > 6 else "")
