"""Rollouts: the policy acts in the environments, and each base state met is also traversed through imagined nodes.

A split does not touch the base environment, so for a base state that was met the answer to every split is known. Beside
the environment's own steps, `record_traversal` follows one traversal for the actor to learn from. Each node on it
becomes a row, with the greedy traversal behind every split afforded there: the base action at its leaf, and how many
splits lie between.

Compiled environments are stepped inside one compiled loop, any other Gymnasium environments from Python.

Arguments of compiled functions: `rules` and `policy` are `TraversalRules` and a `PolicyNetwork`; `node` and `child` are
`Node` buffers, the child for what lies behind a split; `outputs` are the network's at the node; `rng` [4] is a random
stream. They write to environment `i` and row `t` of `rows` (`Rows`) and of `upcoming` (`UpcomingActions`).
"""
# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from custard.core.numba_tools import njit_inlined, njit_inner, njit_outer
from custard.envs.pcg64 import streams, uniform
from custard.ibmdp.splits import Rules
from custard.nn.networks import Weights
from custard.solvers.ppo.policy import PolicyNetwork
from custard.solvers.ppo.traversal import (
    apply_split,
    cached_leaf,
    choose_action,
    compile_rules,
    copy_node,
    forget_outputs,
    make_nodes,
    move_to_root,
    network_outputs,
    standard_normal,
    traverse,
    v_of_logit,
    vector_component,
)
from custard.solvers.ppo.update import make_rows
from custard.task.compiled_episodes import CompiledEpisodes, make_compiled_episodes, start_episode, step_episode
from custard.task.problem import Problem
from custard.task.runners import MAX_LEARNING_ENVIRONMENTS, PythonEpisodes
from custard.task.source import DEFAULT_TIME_LIMIT

__all__ = [
    "Environments", "Exploration", "PythonEnvironments", "Rollouts", "break_episodes", "make_environments",
]  # fmt: skip


class Exploration(NamedTuple):
    """How far an iteration's rollouts depart from the greedy tree."""

    epsilon: float  # share of random splits in imagined traversals
    greedy_share: float  # share of base actions that are the greedy tree's; the others are sampled from the policy
    random_shares: np.ndarray  # [environments]: share of random base actions; above 0, rows train the critic only


class UpcomingActions(NamedTuple):
    """The policy's base action at the current base state of each environment."""

    is_missing: np.ndarray  # [environments]: whether it is not chosen yet; the environments' own `is_new`
    action: np.ndarray  # [environments]
    n_splits: np.ndarray  # [environments]: splits on the way to its leaf
    vector: np.ndarray  # [environments, k]


# -- environments -----------------------------------------------------------------------------------------------------


class PythonEnvironments:
    """Any Gymnasium environments. Each episode has its own seed and is broken off where a checkpoint may be made.

    So a run can be resumed although the environments' states cannot be stored. An episode broken off counts as
    truncated: its last state keeps its value.
    """

    def __init__(self, problem: Problem, count: int, seed: int, limit_terminates: bool) -> None:
        count = 1 if problem.source.is_single_instance else min(count, MAX_LEARNING_ENVIRONMENTS)
        max_steps = problem.source.time_limit or DEFAULT_TIME_LIMIT
        self.episodes = [
            PythonEpisodes(problem, seed, i, max_steps=max_steps, limit_terminates=limit_terminates)
            for i in range(count)
        ]
        self.x, self.is_new = np.zeros((count, problem.base.features.n)), np.ones(count, dtype=bool)
        self.restart_all = True

    def step_all(
        self, rows_per_env: int, choose: Callable[[int, int], tuple[int, Any]], record: Callable[..., None]
    ) -> int:  # fmt: skip
        """Step each environment until its rows are full; return the number of base actions taken.

        `choose(i, t)` returns the row of environment i's next base action, t or a later one, and the action; or
        `rows_per_env`, if splits fill the rows before. `record(i, t, reward, terminated, done)` gets its outcome.
        """
        n_actions = 0
        for i, episode in enumerate(self.episodes):
            if self.restart_all:
                self.x[i], self.is_new[i] = episode.reset(), True
            t, action = choose(i, 0)
            while t < rows_per_env:
                self.x[i], reward, terminated, truncated = episode.step(action)
                n_actions += 1
                done = terminated or truncated
                record(i, t, reward, terminated, done)
                if done:
                    self.x[i], self.is_new[i] = episode.reset(), True
                if t + 1 == rows_per_env:
                    break
                t, action = choose(i, t + 1)
        self.restart_all = False
        return n_actions

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays a checkpoint keeps."""
        return {f"env.{i}.seed_and_episodes": episode.seed_and_episodes for i, episode in enumerate(self.episodes)}


Environments = CompiledEpisodes | PythonEnvironments


def make_environments(problem: Problem, count: int, seed: int, limit_terminates: bool) -> Environments:
    """Return environments side by side: compiled ones where there are, otherwise at most 8 stepped from Python."""
    if problem.is_compiled:
        return make_compiled_episodes(problem, seed, limit_terminates=limit_terminates, count=count)
    return PythonEnvironments(problem, count, seed, limit_terminates)


def break_episodes(envs: Environments) -> None:
    """Start new episodes before the next rows in environments whose state cannot be stored."""
    if isinstance(envs, PythonEnvironments):
        envs.restart_all = True


# -- rows -------------------------------------------------------------------------------------------------------------


@njit_inner
def write_scaled_state(rules, base_state, row):
    """Write a base state to a row: 0 at the lower bounds, 1 at the upper ones, not clipped."""
    for c in range(len(base_state)):
        row[c] = (base_state[c] - rules.features[c].low) / rules.features[c].width


@njit_inner
def write_scaled_vector(components, vector, row):
    """Write an action vector to a row: -1 at the lower bounds, 1 at the upper ones."""
    for j in range(len(vector)):
        row[j] = (vector[j] - components[j].centre) / components[j].half_width


@njit_inlined
def record_vectors(rules, policy, node, child, outputs, rng, rows, i, t):
    """Write the greedy action vector of a node and a noisy one."""
    k = len(node.vector)
    first = policy.weights[len(policy.weights) - 1].shape[1] - k
    for j in range(k):
        child.vector[j] = vector_component(rules.vector_components, j, outputs[first + j])
    write_scaled_vector(rules.vector_components, child.vector, rows.leaf_vectors[i, t, 0])
    for j in range(k):
        rows.vector_noise[i, t, j] = standard_normal(rng)
        noise = policy.vector_spread * rows.vector_noise[i, t, j]
        child.vector[j] = vector_component(rules.vector_components, j, outputs[first + j] + noise)
    write_scaled_vector(rules.vector_components, child.vector, rows.leaf_vectors[i, t, 1])


@njit_inlined
def record_leaves(rules, policy, node, child, outputs, rng, sampled, rows, i, t):
    """Write the leaf behind every split afforded at a node; return how many splits are afforded."""
    n_base, n, n_actions, n_afforded = rules.n_base, len(node.base_state), len(node.mask), 0
    for a in range(n_base, n_actions):
        if not node.mask[a]:
            continue
        n_afforded += 1
        split = a - n_base
        leaf_action, n_splits = cached_leaf(rules, node.cache, node.place[0].cache_index, split, node.base_state)
        if leaf_action >= 0:
            rows.leaf_action[i, t, a], rows.leaf_splits[i, t, a] = leaf_action, n_splits
            continue
        # The split at the greedy v, then (in the parameterised form) at a noisy one.
        noise = 0.0
        for turn in range(2 if rules.parameterised else 1):
            copy_node(node, child)
            if rules.parameterised:
                noise = standard_normal(rng) if turn else 0.0
                child.place[0].v = v_of_logit(outputs[n_actions + split] + policy.v_spread * noise)
            apply_split(rules, child, a)
            leaf_action, n_splits = traverse(rules, policy, child, rng, sampled)
            if turn:
                rows.v_noise[i, t, split] = noise
                rows.noisy_leaf_action[i, t, split], rows.noisy_leaf_splits[i, t, split] = leaf_action, n_splits
            else:
                rows.leaf_action[i, t, a], rows.leaf_splits[i, t, a] = leaf_action, n_splits
            write_scaled_vector(
                rules.vector_components, child.vector, rows.leaf_vectors[i, t, 2 + (turn * n + split) % (2 * n)]
            )
    return n_afforded


@njit_inlined
def record_traversal(rules, policy, node, child, rng, epsilon, rows, i, t):
    """Write a traversal with the node's base state, each of its nodes as a row from t on; return the next free row.

    With probability `epsilon` the next split is any that is afforded, at any v.
    """
    n_base, rows_per_env = rules.n_base, rows.has_action.shape[1]
    sampled = epsilon >= 0.0  # true: a constant would have `choose_action` and `traverse` compiled twice
    move_to_root(rules, node)
    while True:
        action = choose_action(rules, policy, node, rng, sampled)
        v = node.place[0].v
        outputs = network_outputs(policy, node)
        for j in range(len(node.normalised_bounds)):
            rows.normalised_bounds[i, t, j] = node.normalised_bounds[j]
        for a in range(len(node.mask)):
            rows.mask[i, t, a] = node.mask[a]
        write_scaled_state(rules, node.base_state, rows.base_state[i, t])
        rows.trains_actor[i, t] = True
        rows.has_action[i, t] = False
        record_vectors(rules, policy, node, child, outputs, rng, rows, i, t)
        n_afforded = record_leaves(rules, policy, node, child, outputs, rng, not sampled, rows, i, t)
        t += 1
        if n_afforded > 0 and uniform(rng, 0.0, 1.0) < epsilon:
            to_skip = int(uniform(rng, 0.0, float(n_afforded)))
            action = n_base
            while not node.mask[action] or to_skip > 0:
                if node.mask[action]:
                    to_skip -= 1
                action += 1
            v = uniform(rng, 0.0, 1.0)
        if action < n_base or t == rows_per_env:
            return t
        node.place[0].v = v
        apply_split(rules, node, action)


@njit_inlined
def choose_upcoming(rules, policy, node, rng, greedy_share, upcoming, i):
    """Traverse from the root to the policy's base action at the node's base state, sampled or greedy."""
    move_to_root(rules, node)
    is_sampled = uniform(rng, 0.0, 1.0) >= greedy_share
    upcoming.action[i], upcoming.n_splits[i] = traverse(rules, policy, node, rng, is_sampled)
    for j in range(len(node.vector)):
        upcoming.vector[i, j] = node.vector[j]
    upcoming.is_missing[i] = False


@njit_inlined
def choose_base_action(rules, policy, node, child, rng, base_state, upcoming, exploration, rows, i, t):
    """Write rows for the actor from row t on (unless environment i explores), then choose the base action to take.

    `node` and `child` are buffers, `rng` is environment i's stream, `base_state` [n] its current one. Return the row
    of the base action, and the action; an action vector is left in `node.vector`.
    """
    random_share = exploration.random_shares[i]
    for c in range(len(base_state)):
        node.base_state[c] = base_state[c]
    if upcoming.is_missing[i]:
        choose_upcoming(rules, policy, node, rng, exploration.greedy_share, upcoming, i)
    last, action, is_own = t, upcoming.action[i], True
    if random_share > 0.0:
        rows.trains_actor[i, t] = False
        write_scaled_state(rules, node.base_state, rows.base_state[i, t])
        if uniform(rng, 0.0, 1.0) < random_share:
            action = int(uniform(rng, 0.0, float(rules.n_base)))
            is_own = len(node.vector) == 0
    else:
        last = record_traversal(rules, policy, node, child, rng, exploration.epsilon, rows, i, t) - 1
    for j in range(len(node.vector)):
        node.vector[j] = upcoming.vector[i, j]
        if not is_own:  # anything between the bounds; where there are none, about as far from 0 as learning starts
            bounded = rules.vector_components[j].low > -np.inf and rules.vector_components[j].high < np.inf
            output = uniform(rng, -1.0, 1.0) if bounded else standard_normal(rng)
            node.vector[j] = vector_component(rules.vector_components, j, output)
    write_scaled_vector(rules.vector_components, node.vector, rows.vector[i, last])
    rows.on_policy[i, last] = is_own and action == upcoming.action[i]
    rows.has_action[i, last] = True
    rows.action[i, last] = action
    return last, action


@njit_inlined
def record_outcome(
    rules, policy, node, rng, base_state, upcoming, exploration, rows, i, t, reward, terminated, done
):  # fmt: skip
    """Write the outcome of environment i's base action to row t, and choose the policy's next one at `base_state`."""
    for c in range(len(base_state)):
        node.base_state[c] = base_state[c]
    write_scaled_state(rules, node.base_state, rows.next_base_state[i, t])
    choose_upcoming(rules, policy, node, rng, exploration.greedy_share, upcoming, i)
    write_scaled_vector(rules.vector_components, upcoming.vector[i], rows.next_vector[i, t])
    rows.reward[i, t] = reward
    rows.terminated[i, t] = terminated
    rows.done[i, t] = done
    rows.next_action[i, t] = upcoming.action[i]
    rows.next_splits[i, t] = upcoming.n_splits[i]


@njit_outer
def fill_rows(rules, policy, node, child, rng, envs, upcoming, exploration, rows, finished):
    """Fill all rows from compiled environments; return the number of base actions taken.

    `node` and `child` are buffers, `rng` [environments, 4] are streams. The returns of episodes that end in
    environments that do not explore are added to finished[0], their number to finished[1].
    """
    n_actions = 0
    forget_outputs(rules, node)
    for i in range(rows.has_action.shape[0]):
        t, base_state = np.int64(0), envs.x[i]
        while t < rows.has_action.shape[1]:
            t, number = choose_base_action(
                rules, policy, node, child, rng[i], base_state, upcoming, exploration, rows, i, t
            )  # fmt: skip
            action = node.vector[0] if len(node.vector) else float(number)
            reward, terminated, done = step_episode(envs, i, action)
            n_actions += 1
            record_outcome(
                rules, policy, node, rng[i], base_state, upcoming, exploration, rows, i, t, reward, terminated, done
            )  # fmt: skip
            if done:
                if exploration.random_shares[i] == 0.0:
                    finished[0] += envs.returns[i]
                    finished[1] += 1
                start_episode(envs, i)
            t += 1
    return n_actions


class Rollouts:
    """Environments the policy acts in, and the rows that an iteration learns from."""

    def __init__(
        self, rules: Rules, envs: Environments, actor: Weights, frequencies: int, rows_per_env: int, seed: int
    ) -> None:  # fmt: skip
        """Allocate the rows.

        rules               the IBMDP
        envs                the environments, side by side
        actor, frequencies  weights of the policy, and of the encoding of its input
        rows_per_env        rows per environment and iteration
        seed                of actions
        """
        self.rules, self.envs, self.base_actions = compile_rules(rules), envs, rules.actions
        self.node, self.child = make_nodes(self.rules, actor, frequencies)
        count = len(envs.x)
        self.rng = streams(np.random.SeedSequence(seed).spawn(count))
        self.rows = make_rows(self.rules, count, rows_per_env)
        zeros, vector = np.zeros(count, dtype=np.int64), np.zeros((count, len(self.rules.vector_components)))
        self.upcoming = UpcomingActions(envs.is_new, zeros, zeros.copy(), vector)
        self.finished = np.zeros(2)  # sum of the returns, and number, of episodes that ended

    def collect(self, policy: PolicyNetwork, exploration: Exploration) -> int:
        """Fill the rows; return the number of base actions taken. Episodes that end are added to `finished`."""
        rules, node, child, rng, envs = self.rules, self.node, self.child, self.rng, self.envs
        shared = self.upcoming, exploration, self.rows
        if isinstance(envs, CompiledEpisodes):
            return fill_rows(rules, policy, node, child, rng, envs, *shared, self.finished)

        def choose(i: int, t: int) -> tuple[int, Any]:
            t, number = choose_base_action(rules, policy, node, child, rng[i], envs.x[i], *shared, i, t)
            return t, number + self.base_actions.start if self.base_actions.discrete else node.vector.copy()

        def record(i: int, t: int, reward: float, terminated: bool, done: bool) -> None:
            record_outcome(rules, policy, node, rng[i], envs.x[i], *shared, i, t, reward, terminated, done)
            if done and exploration.random_shares[i] == 0.0:
                self.finished += (envs.episodes[i].total, 1.0)

        forget_outputs(rules, node)
        return envs.step_all(self.rows.has_action.shape[1], choose, record)

    def arrays(self) -> dict[str, np.ndarray]:
        """Return the arrays a checkpoint keeps, not copied."""
        upcoming = {f"upcoming.{name}": getattr(self.upcoming, name) for name in UpcomingActions._fields}
        return {"rng": self.rng, **upcoming, **self.envs.arrays()}
