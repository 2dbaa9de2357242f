"""The paper's derivation, runnable: two agents, the merged agent, the omniscient Q-function, as tabular Q-learning.

These are for reading and for checking other solvers against, on small finite base MDPs with discrete splits. Each
function is one paragraph of the paper's "Training Procedure" and learns with its target and nothing else. A node of the
tree is identified by what a policy over bounds sees there (`o` below is s_w \\ s_b).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from custard.ibmdp.env import IBMDP
from custard.ibmdp.splits import narrowed
from custard.tree.extract import extract
from custard.tree.tree import Tree

__all__ = ["Schedule", "merged_agent", "omniscient_agent", "two_agents"]

Node = bytes  # o: the bounds as the observation holds them, and the affordances there


def node_of(bounds: np.ndarray, mask: np.ndarray) -> Node:
    """Return the key of a node in a table."""
    return bounds.tobytes() + mask.tobytes()


@dataclass(frozen=True)
class Schedule:
    """How long, how greedily and how fast to learn."""

    episodes: int = 3000
    epsilon: float = 1.0  # share of random actions at the start; it falls linearly to zero
    rate: float = 0.5  # learning rate at the start; it falls as 1 / (1 + visits / slow)
    slow: float = 100.0
    seed: int = 0


@dataclass(frozen=True)
class Step:
    """One step of the IBMDP as a learner sees it."""

    node: Node  # o
    state: bytes  # s_b
    action: int
    reward: float
    terminated: bool
    truncated: bool
    next_node: Node  # o'
    next_state: bytes  # s_b'
    next_mask: np.ndarray  # what is afforded at o'


class Table:
    """A Q-function as a table in which each entry has a learning rate of its own."""

    def __init__(self, n_actions: int, schedule: Schedule) -> None:
        self.q: dict[Any, np.ndarray] = defaultdict(lambda: np.zeros(n_actions))
        self.visits: dict[Any, np.ndarray] = defaultdict(lambda: np.zeros(n_actions))
        self.schedule = schedule

    def update(self, key: Any, action: int, target: float) -> None:
        """Q(key, action) <- Q + rate * (target - Q)."""
        rate = self.schedule.rate / (1.0 + self.visits[key][action] / self.schedule.slow)
        self.visits[key][action] += 1
        self.q[key][action] += rate * (target - self.q[key][action])


def two_agents(env: IBMDP, schedule: Schedule | None = None) -> Tree:
    """ "Two Agent Division": a leaf agent with Q_l over A_b, a tree agent with Q_d over splits and a_stop."""
    schedule = schedule or Schedule()
    rules, n_base = env.rules, env.rules.n_base
    leaf = Table(n_base, schedule)  # Q_l
    tree = Table(rules.n_actions - n_base + 1, schedule)  # Q_d; entry 0 is a_stop, then the splits
    stop = 0
    pending: list[Step] = []  # the leaf agent's last step, until its next state s_l2 is known

    def values(node: Node) -> np.ndarray:
        """Return the values that are acted on: stopping is worth what the leaf agent then gets."""
        return np.concatenate([leaf.q[node] - leaf.q[node].max() + tree.q[node][stop], tree.q[node][1:]])

    def learn(step: Step) -> None:
        if step.action >= n_base:
            # Tree agent: r_d + gamma_w max_a' Q_d(s_d', a'), with r_d = zeta.
            best = _max_afforded(tree.q[step.next_node][1:], step.next_mask[n_base:], tree.q[step.next_node][stop])
            tree.update(step.node, 1 + step.action - n_base, rules.zeta + rules.gamma_w * best)
            if step.truncated:  # too many splits: the leaf agent's last step has no next one
                pending.clear()
            return
        # Leaf agent: r_l1 + gamma_b max_a' Q_l(s_l2, a'), s_l2 being the next node where a base action is taken: here.
        if pending:
            before = pending.pop()
            leaf.update(before.node, before.action, before.reward + rules.gamma_b * leaf.q[step.node].max())
        if step.terminated:
            leaf.update(step.node, step.action, step.reward)
        elif not step.truncated:
            pending.append(step)
        # a_stop ends the tree agent's episode: its target is r_d = max_a' Q_l(s_d, a') alone.
        tree.update(step.node, stop, leaf.q[step.node].max())

    return _run_episodes(env, schedule, values, learn)


def merged_agent(env: IBMDP, schedule: Schedule | None = None) -> Tree:
    """ "Merging of Agents": one Q over all actions; a base action's target is taken at the next leaf s_l2, which is
    found by simulating the greedy traversal of the next base state."""
    schedule = schedule or Schedule()
    rules, n_base = env.rules, env.rules.n_base
    table = Table(rules.n_actions, schedule)

    def learn(step: Step) -> None:
        if step.action >= n_base:
            best = _max_afforded(table.q[step.next_node], step.next_mask)
            table.update(step.node, step.action, rules.zeta + rules.gamma_w * best)
            return
        future = 0.0
        if not step.terminated:
            s_l2 = _greedy_leaf(env, lambda node: table.q[node])
            future = rules.gamma_b * table.q[s_l2][:n_base].max()
        table.update(step.node, step.action, step.reward + future)

    return _run_episodes(env, schedule, lambda node: table.q[node], learn)


def omniscient_agent(env: IBMDP, schedule: Schedule | None = None) -> Tree:
    """ "Omniscient Q-function": both Q(o, a) and Q_o(s_w, a) move to r + gamma Q_o(s_w', argmax_a Q(o', a))."""
    schedule = schedule or Schedule()
    rules, n_base = env.rules, env.rules.n_base
    q, q_o = Table(rules.n_actions, schedule), Table(rules.n_actions, schedule)

    def learn(step: Step) -> None:
        target = step.reward
        if not step.terminated:
            greedy = int(np.argmax(np.where(step.next_mask, q.q[step.next_node], -np.inf)))
            discount = rules.gamma_b if step.action < n_base else rules.gamma_w
            target += discount * q_o.q[step.next_state + step.next_node][greedy]
        q_o.update(step.state + step.node, step.action, target)
        q.update(step.node, step.action, target)

    return _run_episodes(env, schedule, lambda node: q.q[node], learn)


def _run_episodes(
    env: IBMDP, schedule: Schedule, values: Callable[[Node], np.ndarray], learn: Callable[[Step], None]
) -> Tree:
    """Run epsilon-greedy episodes and learn from every step; return the greedy policy's tree at the end."""
    rng = np.random.default_rng(schedule.seed)
    bounds = slice(-2 * env.rules.features.n, None)
    for episode in range(schedule.episodes):
        epsilon = schedule.epsilon * (1.0 - episode / schedule.episodes)
        observation, info = env.reset(seed=schedule.seed if episode == 0 else None)
        node, mask, over = node_of(observation[bounds], info["action_mask"]), info["action_mask"], False
        while not over:
            state = env.x.tobytes()
            afforded = np.flatnonzero(mask)
            greedy = rng.random() >= epsilon
            action = int(afforded[np.argmax(values(node)[afforded])] if greedy else rng.choice(afforded))
            observation, reward, terminated, truncated, info = env.step(action)
            mask = info["action_mask"]
            next_node = node_of(observation[bounds], mask)
            learn(Step(node, state, action, reward, terminated, truncated, next_node, env.x.tobytes(), mask))
            node, over = next_node, terminated or truncated
    return _greedy_tree(env, values)


def _greedy_tree(env: IBMDP, values: Callable[[Node], np.ndarray]) -> Tree:
    """Return the greedy policy's tree by Algorithm 1; the policy sees bounds and mask, as a learner's node does."""

    def policy(bounds: np.ndarray, mask: np.ndarray) -> np.ndarray:
        q = np.stack([values(node_of(b, m)) for b, m in zip(bounds, mask, strict=True)])
        return np.argmax(np.where(mask, q, -np.inf), axis=1)

    return extract(policy, env)


def _max_afforded(values: np.ndarray, mask: np.ndarray, *others: float) -> float:
    """Return the largest value among afforded actions and others."""
    return max([float(np.max(values, where=mask, initial=-np.inf)), *others])


def _greedy_leaf(env: IBMDP, values: Callable[[Node], np.ndarray]) -> Node:
    """Return F(s_r) = s_l2: the node where the greedy policy, from the root on, acts in the present base state."""
    lower, upper = env.rules.root()
    depth = 0
    while True:
        mask = env.rules.mask(lower, upper, depth)
        node = node_of(env.rules.normalised(lower, upper), mask)
        number = int(np.argmax(np.where(mask, values(node), -np.inf)))
        if number < env.rules.n_base:
            return node
        (c,), (v_p,) = env.rules.thresholds(lower[None], upper[None], np.array([number]), np.zeros(1))
        lower[c], upper[c] = narrowed(lower[c], upper[c], v_p, env.x[c] <= v_p)
        depth += 1
