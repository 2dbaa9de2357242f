"""CUSTARD (DQN): targets by hand, the tabular limit, masks, seeds, checkpoints, and worlds whose answer is known."""

from __future__ import annotations

from functools import partial
from itertools import islice

import gymnasium as gym
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import custard
from custard.core.errors import CustardError
from custard.core.spaces import describe
from custard.envs.pcg64 import streams
from custard.ibmdp.splits import Rules
from custard.nn import networks
from custard.nn.replay import Replay
from custard.solvers.common.network_trees import MAX_NODES, extract_from_network, extract_limited, prune
from custard.solvers.dqn import dqn, paper
from custard.solvers.dqn.node_values import make_node_cache, node_values, with_weights
from custard.solvers.dqn.paper import (
    UPDATES_PER_COMPILED_CALL,
    Networks,
    PaperLearner,
    choose_action,
    q_values,
    targets,
    update_many,
)  # fmt: skip
from custard.solvers.reference import Schedule, omniscient_agent
from custard.task.problem import Problem
from custard.task.settings import settings_for
from custard.task.source import source

PREREQ = "custard/PrereqWorld-v0"
ZETA, GAMMA_B, GAMMA_W = -0.01, 0.9, 0.8


def problem_of(env, kwargs=None, seed=0, max_depth=None, **bounds):
    where = source(env, kwargs)
    return Problem(where, describe(where.make_vec(1), **bounds), seed, max_depth)


def paper_learner(problem, settings):
    return PaperLearner(problem, paper.rules_for(problem, settings)[0], settings)


# -- targets, by hand -----------------------------------------------------------------------------------------------


def test_targets_of_a_base_action_a_split_an_end_and_a_cut():
    """One feature, two base actions and one split; s_w = (s_b, lower, upper)."""
    after = np.array([[0.2, 0.0, 1.0], [0.2, 0.0, 0.5], [0.9, 0.0, 1.0], [0.9, 0.5, 1.0]], dtype=np.float32)
    # The policy over bounds: at the root it would ask, elsewhere take action 1, unless told otherwise below.
    q = {(0.0, 1.0): [1.0, 2.0, 3.0], (0.0, 0.5): [1.0, 2.0, 9.0], (0.5, 1.0): [4.0, 2.0, 9.0]}
    q_o = {0.2: [10.0, 20.0, 30.0], 0.9: [50.0, 60.0, 70.0]}
    batch = {
        "after": after,
        "reward": np.array([1.0, ZETA, 5.0, 7.0], dtype=np.float32),
        "discount": np.array([GAMMA_B, GAMMA_W, GAMMA_B, GAMMA_W], dtype=np.float32),
        "ended": np.array([False, False, True, False]),
        "mask": np.array([[1, 1, 1], [1, 1, 0], [1, 1, 1], [1, 1, 0]], dtype=bool),
    }
    found = targets(
        lambda bounds: jnp.array([q[tuple(float(v) for v in row)] for row in np.asarray(bounds)]),
        lambda s_w: jnp.array([q_o[round(float(row[0]), 1)] for row in np.asarray(s_w)]),
        batch,
    )
    by_hand = [
        1.0 + GAMMA_B * 30.0,  # base action: at the root the policy asks, Q_o says 30
        ZETA + GAMMA_W * 20.0,  # split: the depth limit forbids to ask again (9 is masked), action 1 is greedy
        5.0,  # terminated: nothing follows
        7.0 + GAMMA_W * 50.0,  # cut off, not terminated: bootstraps; action 0 is greedy
    ]
    np.testing.assert_allclose(np.asarray(found), by_hand, rtol=1e-6)


def test_a_cut_episode_is_remembered_as_going_on():
    """PrereqWorld cut after 3 steps: the last transition is not an end. Reaching the goal is one."""
    where = source(lambda: gym.wrappers.TimeLimit(gym.make(PREREQ, m=4).unwrapped, 3))
    problem = Problem(where, describe(where.make_vec(1)), 0, 2)
    settings = settings_for(dqn, PREREQ, "paper", {"budget": 2000, "warmup": 2000, "hidden": 8})
    learner = paper_learner(problem, settings)
    cut = goal = 0
    while learner.steps < 600:
        before, episodes = learner.memory.filled, learner.episodes
        learner.learn()
        if learner.episodes > episodes:
            last = {name: column[learner.memory.filled - 1] for name, column in learner.memory.columns.items()}
            assert learner.memory.filled > before
            assert last["ended"] == (last["reward"] == 0.0)
            cut, goal = cut + (not last["ended"]), goal + bool(last["ended"])
    assert cut > 0
    assert learner.memory.columns["discount"].max() == 1.0


@pytest.mark.parametrize(("env", "kwargs", "depth"), [(PREREQ, {"m": 4}, None), ("custard/CartPole-v0", {}, 2)])
def test_compiled_steps_are_those_of_the_ibmdp(env, kwargs, depth):
    """The same transitions, to the bit, from the compiled loop and from `VectorIBMDP` step by step."""
    settings = settings_for(dqn, env, "paper", {"budget": 4000, "warmup": 300, "hidden": 8, "epsilon_steps": 400})
    learners = []
    for compiled in (True, False):
        problem = problem_of(env, kwargs, 0, depth, low=settings.low, high=settings.high)
        learner = paper_learner(problem, settings)
        assert learner.compiled is not None
        learner.compiled = learner.compiled if compiled else None
        while learner.steps < 1000:
            learner.learn()
        learners.append(learner)
    one, other = (learner.memory.state("memory") for learner in learners)
    assert all(np.array_equal(one[name], other[name]) for name in one)
    assert (learners[0].rng == learners[1].rng).all()
    assert {0, 1} == set(one["memory.ended"].tolist())


def test_updates_come_once_in_so_many_steps_and_the_copy_is_renewed_in_time():
    given = {"budget": 10_000, "warmup": 100, "hidden": 8, "target_every": 2 * UPDATES_PER_COMPILED_CALL}
    settings = settings_for(dqn, PREREQ, "paper", given)
    assert settings.steps_per_update == 4  # as in Mnih et al. (2015)
    problem = problem_of(PREREQ, {"m": 4})
    learner = paper_learner(problem, settings)
    first = np.array(learner.learned.target_network[0])
    while learner.calls < 2:
        np.testing.assert_array_equal(learner.learned.target_network[0], first)
        learner.learn()
    np.testing.assert_array_equal(learner.learned.target_network[0], learner.learned.pair[1][0])  # renewed
    assert int(learner.learned.updates) == 2 * UPDATES_PER_COMPILED_CALL
    assert abs(learner.steps - 100 - 4 * 2 * UPDATES_PER_COMPILED_CALL) <= 4 * UPDATES_PER_COMPILED_CALL


def test_node_values_come_from_following_the_tree():
    """One real feature, p = 1: at the root, the split's value is zeta, then the base action of the half x lies in."""
    rules = Rules(
        custard.Features(("x",), [0.0], [1.0]), custard.Actions("discrete", ("a", "b")), 1, ZETA, 1.0, GAMMA_W, 1
    )
    # Over (lower, upper), neither of them negative: V, then advantages of a, b and the split.
    same = np.array([[1, 0], [0, 1], [0, 0]], dtype=np.float32)
    weights = (same, same, np.array([[0, 0, 5, 0], [0, 1, 0, 3], [0, 0, 0, 0]], dtype=np.float32))
    tree, acts = extract_from_network(weights, 0, rules)
    assert str(tree).splitlines()[0] == "x ≤ 0.5?"
    assert tree.predict([[0.2], [0.9]]).tolist() == [0, 1]
    assert acts.tolist() == [0, 0, 1]
    x = np.array([[0.2], [0.9]])
    q_o = np.array([[3.0, 7.0], [4.0, 6.0]], dtype=np.float32)
    nodes = make_node_cache(rules, weights, 0, streams([0])[0], 100)
    seen, target = np.zeros((2, 2), np.float32), np.zeros((2, 3), np.float32)
    known = np.zeros((2, 3), bool)
    node_values(nodes, x, q_o, ZETA, 0, 0.0, 5, seen, target, known)
    assert known.all()
    by_hand = [[3 - 7, 0, ZETA + GAMMA_W * 3 - 7], [4 - 6, 0, ZETA + GAMMA_W * 6 - 6]]
    np.testing.assert_allclose(target, by_hand, rtol=1e-6)
    node_values(nodes, x, q_o, ZETA, 1, 1.0, 5, seen, target, known)  # now also below: no question is afforded there
    below = seen[:, 1] - seen[:, 0] < 1.0
    assert (known[:, 2] == ~below).all()


def test_a_tree_that_is_cut_says_so():
    rules, _ = dqn.rules_for(problem_of("custard/PotholeWorld-v0", max_depth=30), dqn.Settings(splits=3), 1000)
    endless = extract_limited(lambda bounds, mask: np.where(mask[:, -1], rules.n_actions - 1, 0), rules)
    assert MAX_NODES < endless.n_nodes < 3 * MAX_NODES
    assert endless.origin["cut"] == (endless.feature < 0).sum()  # nothing but the limit made it act
    short = extract_limited(lambda bounds, mask: np.zeros(len(bounds), dtype=int), rules)
    assert "cut" not in short.origin


def test_imagined_walks_agree_with_the_tree_that_is_extract_from_network():
    rng = np.random.default_rng(0)
    features = custard.Features(("x", "k"), [0.0, 0], [1.0, 3], ("real", "integer"))
    rules = Rules(features, custard.Actions("discrete", ("a", "b", "c")), 3, 0.0, 1.0, 1.0, 4)
    x = np.stack([rng.random(400), rng.integers(4, size=400)], axis=1).astype(np.float64)
    nodes = make_node_cache(rules, networks.make_network(rng, (20, 16, 16, 10)), 2, streams([0])[0], 5000)
    for _ in range(3):
        weights = networks.make_network(rng, (20, 16, 16, 10))
        nodes = with_weights(nodes, weights)
        tree, _ = extract_from_network(weights, 2, rules)
        seen, target = np.zeros((400, 4), np.float32), np.zeros((400, 9), np.float32)
        known = np.zeros((400, 9), bool)
        q_o = np.tile(np.array([0.0, -1.0, -2.0], np.float32), (400, 1))
        node_values(nodes, x, q_o, 0.0, 0, 0.0, 99, seen, target, known)
        first = tree.feature[0]
        if first < 0:
            continue
        j = round(float((tree.threshold[0] - features.low[first]) / rules.width[first] * 4)) - 1
        np.testing.assert_array_equal(target[:, 3 + 3 * first + j], -tree.predict(x))


def test_the_quicker_product_has_the_plain_gradient():
    rng = np.random.default_rng(0)
    weights, x = networks.make_network(rng, (6, 8, 8, 4)), rng.random((5, 6)).astype(np.float32)
    plain = lambda w: networks.dueling(networks.forward(w, x, jax.nn.relu))  # noqa: E731
    np.testing.assert_allclose(q_values(weights, x), plain(weights), rtol=1e-5)
    found, wanted = (
        jax.grad(lambda w, f=f: jnp.square(f(w)).sum())(weights) for f in (lambda w: q_values(w, x), plain)
    )
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


# -- the tabular limit ----------------------------------------------------------------------------------------------


class TwoBits(gym.Env):
    """Say whether the first of two random bits is one: a step costs nothing, a right answer is worth 1."""

    observation_space = gym.spaces.MultiBinary(2)
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.bits = self.np_random.integers(2, size=2).astype(np.int8)
        return self.bits, {}

    def step(self, action):
        return self.bits, float(action == self.bits[0]), True, False, {}


def test_one_hot_inputs_and_linear_networks_are_the_tables_of_the_reference():
    """Q(o, a) then is a table. After learning from all transitions it has the values that can be had by hand, and the
    greedy tree is the one the tabular reference finds."""
    env = custard.IBMDP(TwoBits(), splits=1, max_depth=2, zeta=ZETA, gamma_b=1.0, gamma_w=GAMMA_W)
    reference = omniscient_agent(env, Schedule(episodes=1500))
    rng, steps, full, nodes = np.random.default_rng(0), [], {}, {}
    number = lambda table, key: table.setdefault(key.tobytes(), len(table))  # noqa: E731
    observation, info = env.reset(seed=0)
    while len(steps) < 6000:
        action = int(rng.choice(np.flatnonzero(info["action_mask"])))
        after, reward, ended, _, after_info = env.step(action)
        pairs = [(number(full, o), number(nodes, o[2:])) for o in (observation, after)]
        steps.append((*pairs[0], action, reward, after_info["discount"], ended, *pairs[1], after_info["action_mask"]))
        observation, info = env.reset() if ended else (after, after_info)
    size = max(len(full), len(nodes))  # s_w one-hot, then o one-hot: thirds of equal size, as s_b, lower and upper are
    columns = [np.array(column) for column in zip(*steps, strict=True)]
    hot = lambda i, j: np.hstack([np.eye(size)[i], np.eye(2 * size)[j]]).astype(np.float32)  # noqa: E731
    batch = {
        "obs": hot(columns[0], columns[1]), "action": columns[2], "reward": columns[3].astype(np.float32),
        "discount": columns[4].astype(np.float32), "ended": columns[5], "after": hot(columns[6], columns[7]),
        "mask": columns[8],
    }  # fmt: skip
    pair = tuple(jnp.zeros((inputs * size + 1, 1 + 4)) for inputs in (2, 3))
    pair = ((pair[0],), (pair[1],))
    optimiser = optax.adam(optax.linear_schedule(0.1, 0.0, 600))
    state = Networks(pair, pair[1], optimiser.init(pair), jnp.zeros((), jnp.int32))
    one = jax.jit(partial(update_many, optimiser, 10, batches={name: column[None] for name, column in batch.items()}))
    for _ in range(600):
        state, _ = one(state)
    table = np.asarray(q_values(state.pair[0], jnp.eye(2 * size)))
    root = nodes[env.rules.normalised(*env.rules.root()).tobytes()]
    first, second = ZETA + GAMMA_W * 1.0, ZETA + GAMMA_W * (ZETA + GAMMA_W * 1.0)
    np.testing.assert_allclose(table[root], [0.5, 0.5, first, second], atol=0.03)

    def policy(bounds, mask):
        rows = np.stack([table[nodes[row.tobytes()]] for row in bounds])
        return np.where(mask, rows, -np.inf).argmax(axis=1)

    assert custard.extract(policy, env) == reference
    assert reference == custard.Tree.stump(0, 0.5, 0, 1, reference.features, reference.actions)


@pytest.mark.parametrize(
    "given",
    [
        {"preset": "paper", "warmup": 300, "learning_rate": 3e-3, "target_every": 20, "steps_per_update": 1},
        {"steps_per_update": 2},
    ],
)
def test_networks_find_the_reference_tree(given):
    run = custard.learn(TwoBits, "dqn", max_depth=2, seed=0, budget=4000, hidden=16, splits=1, zeta=-0.05, **given)
    assert run.value > 0.99
    assert run.tree == custard.Tree.stump(0, 0.5, 0, 1, run.tree.features, run.tree.actions)


# -- masks, seeds, checkpoints --------------------------------------------------------------------------------------


def test_actions_that_are_not_afforded_are_never_chosen():
    rng = np.random.default_rng(0)
    weights = networks.make_network(rng, (4, 8, 8, 7))
    stream, layer_outputs = streams([0])[0], networks.make_layer_outputs(weights)
    for _ in range(300):
        mask = np.append([True], rng.random(5) < 0.4)
        bounds = rng.random(4).astype(np.float32)
        for epsilon in (0.0, 1.0):
            action = choose_action(weights, bounds, mask, epsilon, stream, layer_outputs)
            assert mask[action]
        q = networks.forward(weights, bounds, lambda h: np.maximum(h, 0))[1:]
        assert choose_action(weights, bounds, mask, 0.0, stream, layer_outputs) == np.where(mask, q, -np.inf).argmax()


def test_what_is_remembered_was_afforded():
    settings = settings_for(dqn, PREREQ, "paper", {"budget": 1000, "warmup": 400, "hidden": 8})
    problem = problem_of(PREREQ, {"m": 4}, max_depth=2)
    learner = paper_learner(problem, settings)
    while learner.steps < 800:
        learner.learn()
    rows = {name: column[: learner.memory.filled] for name, column in learner.memory.columns.items()}
    depth = (rows["obs"][:, 4:8] + 1 - rows["obs"][:, 8:]).sum(axis=1) * 2  # each question halves one width
    assert rows["action"][depth >= 2].max() < 4  # the depth limit leaves base actions
    assert rows["action"].max() >= 4
    for row in range(len(depth)):  # a bit that is known is not asked for again
        asked = rows["action"][row] - 4
        assert asked < 0 or rows["obs"][row, 8 + asked] - rows["obs"][row, 4 + asked] == 1.0


SMALL = {"hidden": 16, "warmup": 500, "steps_per_update": 8, "snapshots": 8}


@pytest.mark.parametrize(
    ("env", "kwargs", "depth", "preset", "given"),
    [
        ("CartPole-v1", None, 2, "tuned", {**SMALL, "budget": 5000}),
        ("FrozenLake-v1", {"is_slippery": False}, 2, "tuned", {**SMALL, "budget": 5000}),
        ("CartPole-v1", None, 2, "paper", {"budget": 3000, "warmup": 300, "hidden": 16, "snapshots": 8}),
    ],
)
def test_a_resumed_run_ends_as_an_uninterrupted_one(env, kwargs, depth, preset, given):
    settings = settings_for(dqn, env, preset, given)
    problem = problem_of(env, kwargs, 5, depth, low=settings.low, high=settings.high)
    whole = list(dqn.solve(problem, settings))
    assert len(whole) >= 4
    state = list(islice(dqn.solve(problem, settings), 2))[-1].state()
    assert all(isinstance(value, np.ndarray) and value.dtype != object for value in state.values())
    rest = list(dqn.solve(problem, settings, state))
    assert len(rest) == len(whole) - 2
    for a, b in zip(rest, whole[2:], strict=True):
        assert (a.steps, a.value, a.message) == (b.steps, b.value, b.message)
        assert a.tree == b.tree
        assert a.final == b.final
    ends = rest[-1].state(), whole[-1].state()
    assert all(np.array_equal(ends[0][name], ends[1][name], equal_nan=True) for name in ends[1])  # bit for bit


def test_the_same_seed_gives_the_same_run_and_another_seed_another():
    runs = [custard.learn("CartPole-v1", "dqn", max_depth=2, seed=s, budget=8000, **SMALL) for s in (1, 1, 2)]
    drop = {"seconds", "steps_per_second"}
    rows = [[{k: v for k, v in row.items() if k not in drop} for row in run.metrics] for run in runs]
    assert rows[0] == rows[1]
    assert runs[0].tree == runs[1].tree
    assert rows[0] != rows[2]


# -- known answers, and the parts -----------------------------------------------------------------------------------


def test_prereq_world_is_solved_with_the_smallest_tree():
    run = custard.learn(PREREQ, "dqn", env_kwargs={"m": 4}, seed=0, budget=150_000, steps_per_update=16, hidden=64)
    assert (run.value, run.tree.depth, run.tree.n_leaves) == (-2.0, 2, 3)
    assert {"tree_return", "loss_critic", "loss_q", "best_leaves", "judging_steps"} <= set(run.metrics[0])


def test_a_question_costs_a_share_of_what_questions_can_gain_unless_its_price_is_given():
    q_o = np.array([[3.0, 1.0], [0.0, 4.0], [2.0, 2.0]])
    gain = 3.0 - 7.0 / 3.0  # the best of each state, less the action that is best for all
    assert dqn.zeta_by_gain(q_o, -1.0) == pytest.approx(-dqn.SPLIT_PRICE_GAIN_SHARE * gain)
    assert dqn.zeta_by_gain(q_o, -0.001) == -0.001
    assert dqn.zeta_by_gain(q_o[:1], -1.0) == 0.0  # nothing to ask
    found = {}
    for given in (None, -0.3):
        settings = settings_for(dqn, "TwoBits", "tuned", {"budget": 4000, "hidden": 8, "splits": 1, "zeta": given})
        problem = problem_of(TwoBits, max_depth=2)
        learner = dqn.Learner(problem, dqn.rules_for(problem, settings, 100_000)[0], settings, 4000)
        learner.learn(0.0, 4000)
        found[given] = [round(learner.zeta, 3), round(learner.lowest_zeta, 3)]
        assert learner.metrics()["updates"] == (1 + settings.critic_updates) * dqn.UPDATES_PER_ROUND
    assert found[-0.3] == [-0.3, -0.3]
    zeta, lowest = found[None]
    assert lowest == -0.005  # a hundredth of the mean reward of random answers
    assert lowest <= zeta <= 0.0


def test_pruning_keeps_what_pays():
    """A complete tree on two bits, of which only the first matters: the price decides what stays."""
    features, actions = (
        custard.Features(("a", "b"), [0, 0], [1, 1], ("binary",) * 2),
        custard.Actions("discrete", ("x", "y")),
    )
    tree = custard.Tree(
        [0, 1, 1, -1, -1, -1, -1], [0.5, 0.5, 0.5, 0, 0, 0, 0], [1, 3, 5, -1, -1, -1, -1], [2, 4, 6, -1, -1, -1, -1],
        [0, 0, 0, 0, 0, 1, 1], features, actions,
    )  # fmt: skip
    acts = np.array([1, 0, 1, 0, 0, 1, 1])
    x = np.array([[0.0, 0], [0, 1], [1, 0], [1, 1]])
    q = np.where(x[:, :1] == [[0.0, 1.0]], 0.0, -1.0)
    stump = custard.Tree.stump(0, 0.5, 0, 1, features, actions)
    assert prune(tree, acts, x, q, 0.0) == stump
    assert prune(tree, acts, x, q, 0.4) == stump
    assert prune(tree, acts, x, q, 0.6).n_leaves == 1
    assert prune(tree, acts, x[:2], q[:2], 0.0).n_leaves == 1  # the other half was never met
    line = custard.Features(("z",), [0.0], [1.0])
    steps = custard.Tree([0, 0, -1, -1, -1], [0.5, 0.25, 0, 0, 0], [1, 3, -1, -1, -1], [2, 4, -1, -1, -1],
                         [0, 0, 0, 1, 0], line, actions)  # fmt: skip
    z = np.linspace(0.01, 0.99, 50)[:, None]
    worth = np.where((z <= 0.25) == [[False, True]], 0.0, -1.0)
    assert prune(steps, np.array([0, 0, 0, 1, 0]), z, worth, 0.0) == custard.Tree.stump(0, 0.25, 1, 0, line, actions)


def test_replay_forgets_the_oldest_and_can_be_stored():
    ring = Replay(5, {"x": np.zeros(2), "k": np.zeros((), np.int32)})
    for start in (0, 3):
        ring.add({"x": np.full((3, 2), start), "k": np.arange(start, start + 3)})
    assert sorted(ring.columns["k"].tolist()) == [1, 2, 3, 4, 5]
    again = Replay(5, {"x": np.zeros(2), "k": np.zeros((), np.int32)})
    again.restore("ring", ring.state("ring"))
    again.add({"x": np.ones((1, 2)), "k": np.array([9])})
    assert sorted(again.columns["k"].tolist()) == [2, 3, 4, 5, 9]
    assert set(again.sample(np.random.default_rng(0), 100)["k"].tolist()) == {2, 3, 4, 5, 9}


def test_a_form_reads_only_its_own_settings():
    for preset, name in (("paper", "max_splits_per_node"), ("tuned", "target_every")):
        with pytest.raises(CustardError, match=f"'{name}' is not read under the preset '{preset}'.* splits"):
            custard.learn("CartPole-v1", "dqn", preset=preset, **{name: 5})


@pytest.mark.parametrize("preset", ["tuned", "paper"])
def test_continuous_actions_are_refused(preset):
    with pytest.raises(CustardError, match="discrete actions"):
        custard.learn("Pendulum-v1", "dqn", budget=1000, preset=preset)
