"""The paper's derivation, runnable: two agents, the merged agent, the omniscient Q-function, as tabular Q-learning.

These are for reading and for checking other solvers against, on small finite base MDPs with discrete splits. Each
function is one paragraph of the paper's "Training Procedure" and learns with its target and nothing else. A node of the
tree is identified by what a policy over bounds sees there (`o` below is s_w without s_b).
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
    """The key of a node in a table."""
    return bounds.tobytes() + mask.tobytes()


@dataclass(frozen=True)
class Schedule:
    """How long and how greedily to learn."""

    episodes: int = 3000
    epsilon: float = 1.0  # exploration at the start; it falls linearly to zero
    rate: float = 0.5  # the learning rate at the start; it falls as 1 / (1 + visits / slow)
    slow: float = 100.0
    seed: int = 0


@dataclass(frozen=True)
class Step:
    """One IBMDP step as a learner sees it."""

    node: Node  # o
    state: bytes  # s_b
    action: int
    reward: float
    terminated: bool
    truncated: bool
    after: Node  # o'
    after_state: bytes  # s_b'
    mask: np.ndarray  # what is afforded at o'


class Table:
    """A Q-function as a table with a learning rate of its own for each entry."""

    def __init__(self, n_actions: int, schedule: Schedule) -> None:
        self.q: dict[Any, np.ndarray] = defaultdict(lambda: np.zeros(n_actions))
        self.visits: dict[Any, np.ndarray] = defaultdict(lambda: np.zeros(n_actions))
        self.schedule = schedule

    def move(self, key: Any, action: int, target: float) -> None:
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
    waiting: list[Step] = []  # the leaf agent's last step, until its next state s_l2 is known

    def values(node: Node) -> np.ndarray:
        """The merged view that is acted on: stopping is worth what the leaf agent then gets."""
        return np.concatenate([leaf.q[node] - leaf.q[node].max() + tree.q[node][stop], tree.q[node][1:]])

    def learn(step: Step) -> None:
        if step.action >= n_base:
            # Tree agent: r_d + gamma_w max_a' Q_d(s_d', a'), with r_d = zeta.
            best = _best(tree.q[step.after][1:], step.mask[n_base:], tree.q[step.after][stop])
            tree.move(step.node, 1 + step.action - n_base, rules.zeta + rules.gamma_w * best)
            if step.truncated:  # asked for too long: the leaf agent's last step has no next one
                waiting.clear()
            return
        # Leaf agent: r_l1 + gamma_b max_a' Q_l(s_l2, a'), s_l2 being the next node where a base action is taken: here.
        if waiting:
            before = waiting.pop()
            leaf.move(before.node, before.action, before.reward + rules.gamma_b * leaf.q[step.node].max())
        if step.terminated:
            leaf.move(step.node, step.action, step.reward)
        elif not step.truncated:
            waiting.append(step)
        # a_stop ends the tree agent's episode: its target is r_d = max_a' Q_l(s_d, a') alone.
        tree.move(step.node, stop, leaf.q[step.node].max())

    return _learn(env, schedule, values, learn)


def merged_agent(env: IBMDP, schedule: Schedule | None = None) -> Tree:
    """ "Merging of Agents": one Q over all actions; a base action's target is taken at the next leaf s_l2, which is
    found by simulating the greedy traversal of the next base state."""
    schedule = schedule or Schedule()
    rules, n_base = env.rules, env.rules.n_base
    table = Table(rules.n_actions, schedule)

    def learn(step: Step) -> None:
        if step.action >= n_base:
            best = _best(table.q[step.after], step.mask)
            table.move(step.node, step.action, rules.zeta + rules.gamma_w * best)
            return
        future = 0.0
        if not step.terminated:
            s_l2 = _greedy_leaf(env, lambda node: table.q[node])
            future = rules.gamma_b * table.q[s_l2][:n_base].max()
        table.move(step.node, step.action, step.reward + future)

    return _learn(env, schedule, lambda node: table.q[node], learn)


def omniscient_agent(env: IBMDP, schedule: Schedule | None = None) -> Tree:
    """ "Omniscient Q-function": both Q(o, a) and Q_o(s_w, a) move to r + gamma Q_o(s_w', argmax_a Q(o', a))."""
    schedule = schedule or Schedule()
    rules, n_base = env.rules, env.rules.n_base
    q, q_o = Table(rules.n_actions, schedule), Table(rules.n_actions, schedule)

    def learn(step: Step) -> None:
        target = step.reward
        if not step.terminated:
            greedy = int(np.argmax(np.where(step.mask, q.q[step.after], -np.inf)))
            discount = rules.gamma_b if step.action < n_base else rules.gamma_w
            target += discount * q_o.q[step.after_state + step.after][greedy]
        q_o.move(step.state + step.node, step.action, target)
        q.move(step.node, step.action, target)

    return _learn(env, schedule, lambda node: q.q[node], learn)


def _learn(env: IBMDP, schedule: Schedule, values: Callable[[Node], np.ndarray], learn: Callable[[Step], None]) -> Tree:
    """Epsilon-greedy episodes with a learning step after each; the greedy policy's tree at the end."""
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
            after = node_of(observation[bounds], mask)
            learn(Step(node, state, action, reward, terminated, truncated, after, env.x.tobytes(), mask))
            node, over = after, terminated or truncated
    return _tree(env, values)


def _tree(env: IBMDP, values: Callable[[Node], np.ndarray]) -> Tree:
    """Algorithm 1 on the greedy policy, which sees what a learner's node is made of: bounds and mask."""

    def policy(bounds: np.ndarray, mask: np.ndarray) -> np.ndarray:
        q = np.stack([values(node_of(b, m)) for b, m in zip(bounds, mask, strict=True)])
        return np.argmax(np.where(mask, q, -np.inf), axis=1)

    return extract(policy, env)


def _best(values: np.ndarray, mask: np.ndarray, *others: float) -> float:
    """The largest value among afforded actions and others."""
    return max([float(np.max(values, where=mask, initial=-np.inf)), *others])


def _greedy_leaf(env: IBMDP, values: Callable[[Node], np.ndarray]) -> Node:
    """F(s_r) = s_l2: follow the greedy policy from the root for the present base state until it acts."""
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
