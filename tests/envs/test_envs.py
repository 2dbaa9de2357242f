import math

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import example, given
from hypothesis import strategies as st

import custard
from custard.envs.pcg64 import streams, uniform
from custard.envs.pothole_world import LANE_2, LANE_3, PotholeWorld, random_potholes
from custard.envs.prereq_world import PREREQUISITES, PrereqWorld, random_prerequisites

NAMES = ["custard/CartPole-v0", "custard/PrereqWorld-v0", "custard/PotholeWorld-v0"]


def same_cosine() -> bool:
    """Whether NumPy's cosine is the C library's here (some builds use their own vector version)."""
    x = np.random.default_rng(0).uniform(-0.5, 0.5, 20_000)
    return all(math.cos(v) == np.cos(v) and math.sin(v) == np.sin(v) for v in x.tolist())


def test_random_streams_are_numpys():
    rows = streams([0, 7, 2**40])
    for row, seed in zip(rows, (0, 7, 2**40), strict=True):
        rng = np.random.default_rng(seed)
        assert [uniform(row, -2.0, 3.0) for _ in range(200)] == [rng.uniform(-2.0, 3.0) for _ in range(200)]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize(("name", "kwargs"), [(NAMES[0], {}), (NAMES[1], {"m": 6, "rho": 0.2}), (NAMES[2], {})])
def test_native_vectors_equal_single_environments(name, kwargs, mode):
    native = gym.make_vec(name, num_envs=9, autoreset_mode=mode, **kwargs)
    single = gym.make_vec(name, num_envs=9, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode}, **kwargs)
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(native.reset(seed=5)[0], single.reset(seed=5)[0])
    for _ in range(400):
        actions = rng.integers(native.single_action_space.n, size=9)
        a, b = native.step(actions), single.step(actions)
        for left, right in zip(a[:4], b[:4], strict=True):
            np.testing.assert_array_equal(left, right)
            assert left.dtype == right.dtype


@pytest.mark.skipif(not same_cosine(), reason="this NumPy's sin and cos differ from the C library's in the last bit")
def test_cartpole_is_gymnasiums_bit_for_bit():
    native = gym.make_vec("custard/CartPole-v0", num_envs=5, max_episode_steps=500)
    theirs = gym.make_vec("CartPole-v1", num_envs=5, vectorization_mode="sync")
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(native.reset(seed=11)[0], theirs.reset(seed=11)[0])
    for _ in range(2000):
        actions = rng.integers(2, size=5)
        for left, right in zip(native.step(actions)[:4], theirs.step(actions)[:4], strict=True):
            np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("name", NAMES)
def test_checker_and_rendering(name):
    check_env(gym.make(name).unwrapped, skip_render_check=True)
    for mode, kind in (("ansi", str), ("rgb_array", np.ndarray)):
        env = gym.make(name, render_mode=mode)
        env.reset(seed=0)
        env.step(1)
        frame = env.render()
        assert isinstance(frame, kind)
        if kind is np.ndarray:
            assert frame.ndim == 3
            assert frame.shape[2] == 3
        env.close()


def test_cartpole_ends_after_200_steps():
    from custard import Tree, describe

    base = describe(gym.make("CartPole-v1"))
    good = Tree(
        feature=[1, -1, 2, -1, -1], threshold=[-0.3499, 0, 0.01526, 0, 0], children_left=[1, -1, 3, -1, -1],
        children_right=[2, -1, 4, -1, -1], value=[0, 1, 0, 0, 1], features=base.features, actions=base.actions,
    )  # fmt: skip
    result = custard.evaluate(good, "custard/CartPole-v0", episodes=50)
    assert result.returns.tolist() == [200.0] * 50
    assert result.time_limited.all()
    assert custard.evaluate(good, "CartPole-v1", episodes=50).mean == 500.0


def shortest(m, prerequisites=None):
    """The least number of attempts, by breadth-first search over item sets as the appendix describes them."""
    table = {item: [p for p in needs if p < m] for item, needs in (prerequisites or PREREQUISITES).items() if item < m}
    level, seen, steps = {frozenset()}, {frozenset()}, 0
    while True:
        steps += 1
        after = set()
        for items in level:
            for item, needs in table.items():
                if set(needs) <= items:
                    if item == 0:
                        return steps
                    after.add(items - set(needs) | {item})
        level = after - seen
        seen |= level


@pytest.mark.parametrize(("m", "value"), [(4, -2), (5, -3), (6, -4), (7, -4), (8, -5), (9, -6), (10, -6)])
def test_prereq_worlds_optimal_return(m, value):
    assert -(shortest(m) - 1) == value
    mdp = PrereqWorld(m=m).mdp()
    v = np.where(mdp.terminal, 0.0, -1e9)
    for _ in range(40):
        q = np.stack([mdp.rewards[:, a] + mdp.transitions[a] @ v for a in range(m)], axis=1)
        v = np.where(mdp.terminal, 0.0, np.maximum(v, q.max(axis=1)))
    assert v @ mdp.start == value


@pytest.mark.parametrize("rho", [0.0, 0.4])
def test_prereq_worlds_model_is_the_environment(rho):
    env = PrereqWorld(m=5, rho=rho, prerequisites=random_prerequisites(5, seed=3))
    mdp = env.mdp()
    counts = np.zeros((32, 5, 32))
    rewards = np.zeros((32, 5))
    tries = 300 if rho else 1
    env.reset(seed=0)
    for state in range(32):
        if mdp.terminal[state]:
            continue
        for action in range(5):
            for _ in range(tries):
                env.items[:] = (state >> np.arange(5)) & 1
                items, reward, *_ = env.step(action)
                counts[state, action, int(items @ (1 << np.arange(5)))] += 1 / tries
                rewards[state, action] += reward / tries
    for action in range(5):
        alive = ~mdp.terminal
        np.testing.assert_allclose(
            mdp.transitions[action].toarray()[alive], counts[alive, action], atol=0.13 if rho else 0
        )
        np.testing.assert_allclose(mdp.rewards[alive, action], rewards[alive, action], atol=0.13 if rho else 0)


def test_random_instances():
    for seed in range(50):
        table = random_prerequisites(8, seed)
        assert table[0]
        assert all(all(other > item for other in needs) for item, needs in table.items())
        assert shortest(8, table) >= 2
        lane2, lane3 = random_potholes(seed)
        both = np.sort(lane2 + lane3)
        assert both[0] == 0
        assert (np.diff(both) >= 0.999).all()
        assert (np.diff(both) <= 2.001).all()
    assert random_potholes(3) == random_potholes(3)
    assert random_prerequisites(6, 1) != random_prerequisites(6, 2)


@pytest.mark.parametrize(("lane", "holes"), [(0, 0), (1, len(LANE_2)), (2, len(LANE_3))])
def test_constant_lanes_have_known_values(lane, holes):
    """Every pothole of a lane is crossed exactly once, whatever the moves: 50 minus five each; 45 in the slow lane."""
    expected = 45.0 if lane == 0 else 50.0 - 5.0 * holes
    tree = custard.Tree.leaf(lane, *_pothole())
    result = custard.evaluate(tree, "custard/PotholeWorld-v0", episodes=200, seed=3)
    np.testing.assert_allclose(result.returns, expected, atol=1e-9)
    assert (result.lengths >= 50).all()
    assert (result.lengths <= 100).all()
    assert abs(result.lengths.mean() - 50 / 0.75 - 0.5) < 0.5  # about length / mean move, plus the overshoot


def _pothole():
    base = custard.describe(gym.make("custard/PotholeWorld-v0"))
    return base.features, base.actions


def test_potholes_count_on_the_right_side():
    env = PotholeWorld(lane2=[1.0], lane3=[0.0])
    from custard.envs.pothole_world import drive

    assert drive(env.potholes, 0.5, 1, 0.5, 50.0) == (1.0, -4.5)  # next == pothole: counts
    assert drive(env.potholes, 1.0, 1, 0.5, 50.0) == (1.5, 0.5)  # previous == pothole: does not
    assert drive(env.potholes, 0.0, 2, 0.5, 50.0) == (0.5, -4.5)  # one at 0 counts on the first move
    assert drive(env.potholes, 0.5, 2, 0.5, 50.0) == (1.0, 0.5)
    assert drive(env.potholes, 49.9, 0, 0.5, 50.0)[0] == 50.0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PrereqWorld(m=11), "m=11"), (lambda: PrereqWorld(m=0), "m=0"), (lambda: PrereqWorld(rho=1.0), "rho"),
        (lambda: PrereqWorld(m=3, prerequisites={1: [0]}), "higher"), (lambda: PotholeWorld(length=0), "length"),
        (lambda: PotholeWorld(lane2=[60]), "lane2"),
    ],
)  # fmt: skip
def test_bad_parameters(make, message):
    with pytest.raises(custard.CustardError, match=message):
        make()


@given(st.lists(st.one_of(st.integers(0, 2**64 - 1), st.integers(0, 2**32)), max_size=20))
@example([0, 2**32 - 1, 2**32, 2**64 - 1])
def test_streams_begin_as_numpys_do(seeds):
    expected = [np.random.PCG64(seed).state["state"] for seed in seeds]
    rows = streams(seeds).tolist()
    assert [((row[0] << 64) + row[1], (row[2] << 64) + row[3]) for row in rows] == [
        (state["state"], state["inc"]) for state in expected
    ]
