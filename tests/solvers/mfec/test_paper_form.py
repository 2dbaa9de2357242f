"""MFEC and NEC as their papers define them: updates worked out by hand, memories against brute force."""

from __future__ import annotations

import numpy as np
import pytest

from custard import Actions, Features
from custard.core.errors import CustardError
from custard.ibmdp.splits import Rules
from custard.solvers.common.action_memory import (
    best_actions,
    best_stored,
    estimate,
    make_memory,
    restore_memory,
    write,
)
from custard.solvers.mfec.paper import (
    PaperSettings,
    choose_base_action,
    end_episode,
    learn_from_episode,
    make_paper_tables,
    record_reward,
)

ROOT, LEFT = (0.0, 1.0, 0.0), (0.0, 0.5, 0.0)  # bounds and depth
SPLIT = 2  # after the base actions 0 and 1


def line_tables(**given):
    """One real feature in [0, 1], two base actions, one threshold per node."""
    features, actions = Features(("x",), [0], [1]), Actions("discrete", ("a", "b"))
    settings = PaperSettings(splits=1, zeta=-0.5, gamma_b=0.5, alpha_b=0.5, alpha_o=0.25, k=1, capacity=50, **given)
    return make_paper_tables(Rules(features, actions, 1, -0.5, 0.5, 1.0), settings, 0)


def learn(tables, *steps, terminated=True):
    """Learn from an episode of steps (x, bounds, action, reward); steps after the last one taken have no action."""
    for t, (x, bounds, action, reward) in enumerate(steps):
        tables.bounds_key[t, 1:], tables.state_key[t, 1:] = bounds, (x, *bounds)
        tables.mask[t], tables.guess[t] = True, -1
        if action is not None:
            tables.action[t], tables.reward[t], tables.gamma[t] = action, reward, 1.0 if action == SPLIT else 0.5
            tables.counters[0].length = t + 1
    learn_from_episode(tables, terminated, 1)


def q(tables, bounds, action):
    return best_stored(tables.q, np.array([0.0, *bounds]), np.arange(3) == action)[1]


def q_o(tables, x, bounds, action):
    return best_stored(tables.q_o, np.array([0.0, x, *bounds]), np.arange(3) == action)[1]


@pytest.mark.parametrize(
    ("target", "root_split", "left_a"),
    [
        # What the second episode gives the split at the root: -0.5 + 4; -0.5 + Q_o(0.2, left, a) = 2.9375;
        # -0.5 + 3 + 0.5 * Q_o(0.7, root, b) = 4.25. And a at the left: 3 + 0.5 * 2; 3 + 0.5 * 3.5; 3 + 0.5 * 2.
        ("episode", 2.5 + 0.5 * (3.5 - 2.5), 3.5),
        ("one-step", 2.5 + 0.5 * (2.9375 - 2.5), 3.0 + 0.5 * (4.75 - 3.0)),
        ("n-step", 2.5 + 0.5 * (4.25 - 2.5), 3.5),
    ],
)
def test_two_episodes_by_hand(target, root_split, left_a):
    """A split at the root, a on its left side, then b at the root of the next state, which ends the episode."""
    tables = line_tables(target=target, n_steps=2)
    learn(tables, (0.2, ROOT, SPLIT, -0.5), (0.2, LEFT, 0, 1.0), (0.7, ROOT, 1, 4.0))
    # Every key is new and stored with its target: 4, 1 + 0.5 * 4, -0.5 + 3, whatever N is.
    assert (q(tables, ROOT, 1), q(tables, LEFT, 0), q(tables, ROOT, SPLIT)) == (4.0, 3.0, 2.5)
    assert (q_o(tables, 0.7, ROOT, 1), q_o(tables, 0.2, LEFT, 0), q_o(tables, 0.2, ROOT, SPLIT)) == (4.0, 3.0, 2.5)
    assert q(tables, LEFT, 1) == q(tables, ROOT, 0) == -np.inf  # never taken, never stored
    learn(tables, (0.2, ROOT, SPLIT, -0.5), (0.2, LEFT, 0, 3.0), (0.7, ROOT, 1, 2.0))
    assert q_o(tables, 0.7, ROOT, 1) == 4.0 + 0.25 * (2.0 - 4.0)  # the rate of Q_o
    assert q(tables, ROOT, 1) == 4.0 + 0.5 * (2.0 - 4.0)
    assert q(tables, LEFT, 0) == left_a
    assert q(tables, ROOT, SPLIT) == root_split


def test_the_target_is_q_o_at_the_action_that_q_chooses():
    """Q prefers b at the root, where Q_o has 1 for it and 9 for a: the target is 1, not 9."""
    tables = line_tables(target="one-step")
    write(tables.q, np.array([0.0, *ROOT]), 0, 3.0, 1.0)
    write(tables.q, np.array([0.0, *ROOT]), 1, 5.0, 1.0)
    write(tables.q_o, np.array([0.0, 0.7, *ROOT]), 0, 9.0, 1.0)
    write(tables.q_o, np.array([0.0, 0.7, *ROOT]), 1, 1.0, 1.0)
    learn(tables, (0.2, LEFT, 0, 2.0), (0.7, ROOT, None, 0.0), terminated=False)
    assert q(tables, LEFT, 0) == 2.0 + 0.5 * 1.0
    learn(tables, (0.2, LEFT, 1, 2.0), (0.7, ROOT, None, 0.0), terminated=True)
    assert q(tables, LEFT, 1) == 2.0


def test_an_action_has_a_memory_of_its_own_and_forgets_what_was_written_least_recently():
    memory = make_memory(2, 1, 2)
    for action, x, value in ((0, 0.1, 1.0), (0, 0.2, 2.0), (1, 0.1, 7.0), (0, 0.1, 3.0), (0, 0.3, 4.0)):
        write(memory, np.array([0.0, x]), action, value, 0.5)

    def stored(action, x):
        return best_stored(memory, np.array([0.0, x]), np.arange(2) == action)

    assert stored(0, 0.1) == (0, 2.0)
    assert stored(0, 0.2) == (-1, -np.inf)  # 0.1 was written after it
    assert stored(0, 0.3) == (0, 4.0)
    assert stored(1, 0.1) == (1, 7.0)
    assert memory.size.tolist() == [2, 1]


def test_an_unseen_key_has_the_mean_of_its_nearest_in_the_memory_of_the_action():
    memory = make_memory(2, 1, 10)
    for action, x, value in ((0, 0.0, 1.0), (0, 0.3, 2.0), (0, 1.0, 30.0), (1, 0.25, 500.0)):
        write(memory, np.array([0.0, x]), action, value, 0.5)
    at = np.array([0.0, 0.2])
    assert estimate(memory, at, 0, 2, np.inf) == 1.5
    assert estimate(memory, at, 1, 2, np.inf) == np.inf  # fewer than k: tried first
    assert estimate(memory, at, 1, 2, np.nan) == 500.0
    assert estimate(memory, np.array([0.0, 0.3]), 0, 2, np.inf) == 2.0  # stored
    assert estimate(make_memory(2, 1, 10), at, 1, 2, np.nan) == 0.0


def test_nodes_only_save_lookups():
    """A memory with nodes answers as one without, while keys are forgotten, nodes are full, and after restoring."""
    rng = np.random.default_rng(0)
    plain, noded = make_memory(3, 2, 6, nodes=False), make_memory(3, 2, 6)
    mask = np.array([True, True, True])
    for i in range(600):
        key, a, target = np.array([0.0, *rng.integers(0, 5, 2)]), int(rng.integers(3)), float(rng.normal())
        write(plain, key, a, target, 0.5)
        write(noded, key, a, target, 0.5)
        if i == 300:
            again = make_memory(3, 2, 6)
            restore_memory(again, noded.keys.key[: noded.keys.size[0]])
            for name in ("value", "older", "newer", "oldest", "newest", "size"):
                getattr(again, name)[:] = getattr(noded, name)
            noded = again
        key = np.array([0.0, *rng.integers(0, 5, 2)])
        assert best_actions(plain, key, mask, 2, np.inf) == best_actions(noded, key, mask, 2, np.inf)
        assert best_stored(plain, key, mask) == best_stored(noded, key, mask)
        assert estimate(plain, key, a, 2, np.nan) == estimate(noded, key, a, 2, np.nan)
    assert (plain.size == 6).all()


def test_nothing_is_written_before_the_episode_ends_and_every_action_is_tried_first():
    tables = line_tables(epsilon=0.0, first_epsilon=0.0)
    taken = []
    for episode in range(2):
        taken.append(int(choose_base_action(tables, np.array([0.2]), 1)))
        record_reward(tables, -1.0)
        assert tables.q.size.sum() == episode
        end_episode(tables, np.array([0.2]), True, 1)
    assert taken == [0, 1]
    assert [q(tables, ROOT, a) for a in range(3)] == [-1.0, -1.0, -np.inf]


def test_an_unknown_target_is_named():
    with pytest.raises(CustardError, match="unknown target 'two-step'"):
        PaperSettings(target="two-step")
