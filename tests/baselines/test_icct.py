"""icct: the tree that is learned acts, straight-through gradients, one update, budgets, checkpoints."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

import custard
from custard import Actions, CustardError, Features, Tree
from custard.baselines.soft_trees import Branches, Scaling, paths_of
from custard.tree.shape import LinearLeaf, Split, build_tree
from tests.baselines.test_growing_trees import problem_of

jax = pytest.importorskip("jax", reason='needs the extra "neural"')

icct = pytest.importorskip("custard.baselines.icct")
sac = pytest.importorskip("custard.nn.sac")

FEATURES = Features(("a", "b"), [-9, -9], [9, 9])
ACTIONS = Actions("box", ("torque", "lift"), low=[-2.0, 0.0], high=[2.0, 1.0])
LONGEST = 50
#: One form for all runs here: updates are compiled once.
SMALL = {"hidden": 32, "batch": 64, "warmup": 500, "learning_rate": 3e-3, "gamma": 0.9}


class Pull(gym.Env):
    """A point on a line that is pulled; it should stay at 0. All instances count their steps."""

    observation_space = gym.spaces.Box(-4.0, 4.0, (2,), dtype=np.float64)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), dtype=np.float32)
    taken = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at, self.t = self.np_random.uniform(-2.0, 2.0, 2), 0
        return self.at.copy(), {}

    def step(self, action):
        Pull.taken += 1
        self.t += 1
        self.at[0] = np.clip(self.at[0] + 0.3 * float(action[0]), -4.0, 4.0)
        self.at[1] = self.np_random.uniform(-2.0, 2.0)
        return self.at.copy(), -abs(float(self.at[0])), False, self.t >= LONGEST, {}


def control_tree(seed, leaves=4, shape="tree", n=2, k=2):
    rng = np.random.default_rng(seed)
    paths = paths_of(shape, leaves, None)
    tree = icct.make_control_tree(rng, paths, n, n, k)
    return tree._replace(gain=rng.normal(size=tree.gain.shape).astype(np.float32), bias=0.3 * tree.bias), paths


# -- the tree ----------------------------------------------------------------------------------------------------------


def test_the_tree_of_one_node_by_hand():
    """b is (b - 1) / 2 for the tree: -2 z > 1 is b < 0. The torque's range is 2, the lift's 0.5 about 0.5."""
    branches = Branches(np.array([[0.5, -2.0]]), np.array([1.0]), np.array(1.0))
    gain = np.array([[[3.0, 1.0], [0.0, 0.0]], [[0.0, 0.0], [0.0, 0.0]]])
    bias = np.array([[0.5, 0.0], [-3.0, 0.4]])
    tree = icct.ControlTree(branches, gain, bias, np.zeros((2, 2)))
    scaling = Scaling(np.array([0.0, 1.0]), np.array([1.0, 2.0]))
    found = icct.crisp_tree(tree, paths_of("tree", 2, None), 2, scaling, FEATURES, ACTIONS)
    # The torque of the first leaf: 2 (0.5 + 3 a + (b - 1) / 2) = 6 a + b; the second leaf's -6 becomes -2.
    first = LinearLeaf(np.array([0.0, 0.5]), np.array([[6.0, 1.0], [0.0, 0.0]]))
    assert found == build_tree(Split(1, 0.0, first, np.array([-2.0, 0.7])), FEATURES, ACTIONS)
    # With one feature per component the smaller gain is left out: 2 (0.5 + 3 a).
    fewer = icct.crisp_tree(tree, paths_of("tree", 2, None), 1, scaling, FEATURES, ACTIONS)
    assert fewer.gains[fewer.apply([[0.0, -1.0]])[0]].tolist() == [[6.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("count", [0, 1, 2])
@pytest.mark.parametrize("shape", ["tree", "list"])
def test_what_is_learned_is_the_tree_that_acts(shape, count):
    """JAX, NumPy and the `Tree` agree: nothing is lost by making it crisp."""
    actor, paths = control_tree(1, 8 if shape == "tree" else 5, shape)
    scaling = Scaling(np.array([0.5, -1.0]), np.array([2.0, 0.3]))
    x = np.random.default_rng(2).normal(size=(300, 2))
    mean, log_deviation = jax.jit(icct.policy, static_argnums=2)(actor, paths, count, scaling.apply(x))
    again, deviation_again = icct.act_crisply(actor, paths, count, scaling.apply(x))
    np.testing.assert_allclose(mean, again, atol=1e-5)
    np.testing.assert_allclose(log_deviation, deviation_again, atol=1e-5)
    middle, half = icct.action_range(ACTIONS)
    tree = icct.crisp_tree(actor, paths, count, scaling, FEATURES, ACTIONS)
    np.testing.assert_allclose(tree.predict(x), middle + half * np.clip(again, -1.0, 1.0), atol=1e-4)
    assert tree.n_leaves == paths.high.shape[1]


def test_gradients_pass_through_the_choices():
    """Weights that are not chosen, thresholds and gains beyond the largest have gradients, as in a soft tree."""
    actor, paths = control_tree(3)
    z = np.random.default_rng(4).normal(size=(50, 2)).astype(np.float32)
    gradient = jax.jit(jax.grad(lambda actor: icct.policy(actor, paths, 1, z)[0].sum()))(actor)
    assert (np.asarray(gradient.branches.beta) != 0.0).all()
    assert (np.asarray(gradient.branches.phi) != 0.0).all()
    assert (np.asarray(gradient.gain) != 0.0).all()
    # The gradient of the threshold is that of the sigmoid: -alpha s (1 - s) (mean high - mean low).
    branches = Branches(np.array([[1.0]]), np.array([0.5]), np.array(1.0))
    stump = icct.ControlTree(branches, np.zeros((2, 1, 1)), np.array([[3.0], [1.0]]), np.zeros((2, 1)))
    two = paths_of("tree", 2, None)
    one = jax.jit(jax.grad(lambda tree: icct.policy(tree, two, 1, np.array([[0.2]]))[0].sum()))(stump)
    s = 1.0 / (1.0 + np.exp(0.3))
    assert float(one.branches.phi[0]) == pytest.approx(-s * (1.0 - s) * 2.0, rel=1e-5)


@pytest.mark.parametrize("kind", ["constant", "linear", "linear:1"])
def test_leaves_have_as_many_gains_as_asked_for(kind):
    run = custard.learn(Pull, "icct", budget=400, leaves=kind, max_depth=1, updates_per_step=0.0)
    most = {"constant": 0, "linear": 2, "linear:1": 1}[kind]
    gains = np.zeros((run.tree.n_nodes, 1, 2)) if run.tree.gains is None else run.tree.gains
    assert np.count_nonzero(gains, axis=2).max() == most


# -- soft actor-critic -------------------------------------------------------------------------------------------------


def test_one_update_against_finite_differences():
    """The actor's and the critics' first Adam steps go against the gradients of the losses written out in NumPy."""
    rng = np.random.default_rng(0)
    actor, rate = np.array([0.2, -0.4], dtype=np.float32), 1e-3

    def normal(weights, z):
        return z[:, :1] * weights[0], weights[1] * (0.0 * z[:, :1] + 1.0)

    learned = sac.make_learned(rng, actor, 1, 1, 4, rate)
    columns = {
        "z": rng.normal(size=(1, 6, 1)),
        "action": rng.uniform(-1, 1, (1, 6, 1)),
        "reward": rng.normal(size=(1, 6)),
    }
    columns |= {"after": rng.normal(size=(1, 6, 1)), "ended": np.array([[0.0, 1.0, 0.0, 0.0, 1.0, 0.0]])}
    rows = sac.Rows(**{k: v.astype(np.float32) for k, v in columns.items()}, noise=0.3 * rng.normal(size=(1, 6, 2, 1)))
    config = sac.SACConfig(0.9, 0.1, rate, sac.target_entropy(1, 0.2))
    after = sac.compile_updates(normal, config)(learned, rows)

    def q(critic, z, action):
        hidden = np.concatenate([z, action], axis=1)
        for w in critic[:-1]:
            hidden = np.maximum(hidden @ w[:-1] + w[-1], 0.0)
        return (hidden @ critic[-1][:-1] + critic[-1][-1])[:, 0]

    def drawn(weights, z, noise):
        mean = z * weights[0]
        density = -(0.5 * noise**2 + weights[1] + 0.5 * np.log(2.0 * np.pi))[:, 0]
        return np.clip(mean + np.exp(weights[1]) * noise, -1.0, 1.0), density

    z, noise = columns["z"][0], rows.noise[0]
    next_action, next_density = drawn(actor, columns["after"][0], noise[:, 0])
    least = np.minimum(*(q(critic, columns["after"][0], next_action) for critic in learned.targets))
    goal = columns["reward"][0] + 0.9 * (1.0 - columns["ended"][0]) * (least - next_density)

    def critic_loss(bias):
        critic = (*learned.critics[0][:-1], learned.critics[0][-1] + np.array([[0.0]] * 4 + [[bias]]))
        return ((q(critic, z, columns["action"][0]) - goal) ** 2).mean()

    def actor_loss(weights):
        action, density = drawn(weights, z, noise[:, 1])
        return (density - np.minimum(*(q(critic, z, action) for critic in learned.critics))).mean()

    moved = float(after.critics[0][-1][-1, 0] - learned.critics[0][-1][-1, 0])
    assert moved == pytest.approx(-rate * np.sign(critic_loss(1e-4) - critic_loss(-1e-4)), rel=1e-2)
    for i in range(2):
        step = np.eye(2)[i] * 1e-4
        direction = np.sign(actor_loss(actor + step) - actor_loss(actor - step))
        assert float(after.actor[i] - actor[i]) == pytest.approx(-rate * direction, rel=1e-2)
    for target, old, new in zip(after.targets[0], learned.targets[0], after.critics[0], strict=True):
        np.testing.assert_allclose(target, 0.9 * old + 0.1 * np.asarray(new), rtol=1e-4, atol=1e-6)


def test_the_temperature_falls_where_there_is_entropy_enough():
    rng = np.random.default_rng(0)
    config = sac.SACConfig(0.9, 0.1, 1e-3, sac.target_entropy(1, 0.2))
    update = sac.compile_updates(lambda width, z: (0.0 * z, width + 0.0 * z), config)
    z, action, after = (rng.normal(size=(1, 64, 1)).astype(np.float32) for _ in range(3))
    zeros = np.zeros((1, 64), dtype=np.float32)
    rows = sac.Rows(z, action, zeros, after, zeros, rng.normal(size=(1, 64, 2, 1)))
    for deviation, direction in ((1.0, -1.0), (0.01, 1.0)):
        learned = sac.make_learned(rng, np.float32(np.log(deviation)), 1, 1, 4, 1e-3)
        assert np.sign(float(update(learned, rows).log_temperature)) == direction


# -- the method --------------------------------------------------------------------------------------------------------


def test_a_linear_controller_is_learned():
    """The best action is -a / 0.3 within [-1, 1]; staying still costs about 50 per episode."""
    run = custard.learn(Pull, "icct", budget=6000, max_depth=2, **SMALL)
    assert run.value > -12.0
    assert run.tree.gains is not None
    assert run.tree.predict([[1.5, 0.0], [-1.5, 0.0]])[:, 0] == pytest.approx([-1.0, 1.0], abs=0.3)


@pytest.mark.parametrize("budget", [300, 1500])
def test_a_budget_is_kept_and_every_step_counted(budget):
    Pull.taken = 0
    run = custard.learn(Pull, "icct", budget=budget, max_depth=2, updates_per_step=0.2, **SMALL)
    assert run.steps == Pull.taken
    assert run.steps <= budget + LONGEST
    assert run.tree.depth <= 2
    assert Tree.from_json(run.tree.to_json()) == run.tree


def test_the_same_seed_gives_the_same_tree_also_after_a_break():
    def snapshots(state=None):
        settings = icct.Settings(budget=4000, updates_per_step=0.2, num_envs=2, **SMALL)
        return icct.solve(problem_of(Pull, 3, max_depth=2), settings, state)

    whole = list(snapshots())
    assert len(whole) > 1
    first = next(snapshots())
    rest = list(snapshots(first.state()))
    assert [(s.steps, s.tree, str(s.value), s.final) for s in rest] == [
        (s.steps, s.tree, str(s.value), s.final) for s in whole[1:]
    ]
    assert whole[-1].message == "budget used"
    assert list(snapshots(whole[-1].state())) == []


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"leaves": "linear:0"}, "leaves='linear:0'"), ({"leaves": "flat"}, "choose constant, linear"),
        ({"shape": "bush"}, "unknown shape"), ({"tau": 2.0}, "tau"),
        ({"exploration_deviation": 0.0}, "exploration_deviation"),
    ],
)  # fmt: skip
def test_bad_settings(settings, message):
    with pytest.raises(CustardError, match=message):
        custard.learn("Pendulum-v1", "icct", **settings)


def test_other_actions_are_refused():
    with pytest.raises(CustardError, match=r"icct needs real-valued \(Box\) actions"):
        custard.learn("CartPole-v1", "icct", budget=100)
    with pytest.raises(CustardError, match="finite bounds"):
        icct.action_range(Actions("box", ("force",), low=[-np.inf], high=[1.0]))
