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
    slow: float = 10.0
    seed: int = 0


@dataclass
class Wrapped:
    """An IBMDP seen as the learner sees it: nodes, masks, and the moves between nodes."""

    env: IBMDP
    rng: np.random.Generator

    def node(self) -> Node:
        """o: where in the tree the traversal stands."""
        return node_of(self.env.rules.normalised(self.env.lower, self.env.upper), self.env.action_masks())

    def choose(self, values: np.ndarray, epsilon: float) -> int:
        """An epsilon-greedy choice among afforded actions."""
        afforded = np.flatnonzero(self.env.action_masks())
        if self.rng.random() < epsilon:
            return int(self.rng.choice(afforded))
        return int(afforded[np.argmax(values[afforded])])


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
    n_base = env.rules.n_base
    leaf = Table(n_base, schedule)  # Q_l
    tree = Table(env.rules.n_actions - n_base + 1, schedule)  # Q_d; entry 0 is a_stop, then the splits
    stop = 0

    def values(node: Node) -> np.ndarray:
        """The merged view that is acted on: stopping is worth what the leaf agent then gets."""
        return np.concatenate([leaf.q[node] - leaf.q[node].max() + tree.q[node][stop], tree.q[node][1:]])

    def learn(world: Wrapped, action: int, node: Node, step: Step, pending: list) -> None:
        if action >= n_base:
            # Tree agent: r_d + gamma_w max_a' Q_d(s_d', a'), with r_d = zeta.
            after = world.node()
            best = _best(tree.q[after][1:], world.env.action_masks()[n_base:], tree.q[after][stop])
            tree.move(node, 1 + action - n_base, env.rules.zeta + env.rules.gamma_w * best)
            return
        # The leaf agent's next state s_l2 is the next node where a base action is taken.
        if pending:
            before, chosen, reward = pending.pop()
            leaf.move(before, chosen, reward + env.rules.gamma_b * leaf.q[node].max())
        tree.move(node, stop, leaf.q[node].max())  # a_stop ends the tree agent's episode with reward max_a Q_l
        if step.terminated:
            leaf.move(node, action, step.reward)
        elif not step.truncated:
            pending.append((node, action, step.reward))

    return _learn(env, schedule, values, learn)


def merged_agent(env: IBMDP, schedule: Schedule | None = None) -> Tree:
    """ "Merging of Agents": one Q over all actions; a base action's target is taken at the next leaf s_l2, which is
    found by simulating the greedy traversal of the next base state."""
    schedule = schedule or Schedule()
    n_base = env.rules.n_base
    table = Table(env.rules.n_actions, schedule)

    def learn(world: Wrapped, action: int, node: Node, step: Step, pending: list) -> None:
        if action >= n_base:
            best = _best(table.q[world.node()], world.env.action_masks())
            table.move(node, action, env.rules.zeta + env.rules.gamma_w * best)
            return
        future = 0.0
        if not step.terminated:
            s_l2 = _greedy_leaf(env, lambda key: table.q[key])
            future = env.rules.gamma_b * table.q[s_l2][:n_base].max()
        table.move(node, action, step.reward + future)

    return _learn(env, schedule, lambda node: table.q[node], learn)


def omniscient_agent(env: IBMDP, schedule: Schedule | None = None) -> Tree:
    """ "Omniscient Q-function": both Q(o, a) and Q_o(s_w, a) move to r + gamma Q_o(s_w', argmax_a Q(o', a))."""
    schedule = schedule or Schedule()
    n_base = env.rules.n_base
    q, q_o = Table(env.rules.n_actions, schedule), Table(env.rules.n_actions, schedule)

    def learn(world: Wrapped, action: int, node: Node, step: Step, pending: list) -> None:
        future = 0.0
        if not step.terminated:
            after, masks = world.node(), world.env.action_masks()
            greedy = int(np.argmax(np.where(masks, q.q[after], -np.inf)))
            discount = env.rules.gamma_b if action < n_base else env.rules.gamma_w
            future = discount * q_o.q[(world.env.x.tobytes(), after)][greedy]
        reward = step.reward if action < n_base else env.rules.zeta
        q_o.move((step.state, node), action, reward + future)
        q.move(node, action, reward + future)

    return _learn(env, schedule, lambda node: q.q[node], learn)


@dataclass(frozen=True)
class Step:
    """What one IBMDP step gave."""

    state: bytes  # s_b before it
    reward: float
    terminated: bool
    truncated: bool


def _learn(
    env: IBMDP,
    schedule: Schedule,
    values: Callable[[Node], np.ndarray],
    learn: Callable[[Wrapped, int, Node, Step, list], None],
) -> Tree:
    """Epsilon-greedy episodes with a learning step after each; the greedy policy's tree at the end."""
    world = Wrapped(env, np.random.default_rng(schedule.seed))
    for episode in range(schedule.episodes):
        epsilon = schedule.epsilon * (1.0 - episode / schedule.episodes)
        env.reset(seed=schedule.seed if episode == 0 else None)
        pending: list = []
        over = False
        while not over:
            node, state = world.node(), env.x.tobytes()
            action = world.choose(values(node), epsilon)
            _, reward, terminated, truncated, _ = env.step(action)
            over = terminated or truncated
            learn(world, action, node, Step(state, float(reward), terminated, truncated), pending)
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
        c, v_p = env.rules.thresholds(lower[None], upper[None], np.array([number]), np.zeros(1))
        if env.x[c[0]] <= v_p[0]:
            upper[c[0]] = v_p[0]
        else:
            lower[c[0]] = v_p[0]
        depth += 1
