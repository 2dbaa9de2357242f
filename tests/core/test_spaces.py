from dataclasses import replace
from enum import IntEnum

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import custard
from custard import CustardError, Features, describe
from custard.core.metadata import METADATA_BY_NAME


class Still(gym.Env):
    """An environment that only has spaces."""

    def __init__(self, observation_space, action_space=None):
        self.observation_space = observation_space
        self.action_space = action_space or spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        return self.observation_space.sample(), 0.0, False, False, {}


@pytest.mark.parametrize(
    ("space", "names", "kinds", "low", "high"),
    [
        (spaces.Box(-1, 2, (2,)), ["obs_0", "obs_1"], ["real"] * 2, [-1, -1], [2, 2]),
        (spaces.Box(0, 255, (2, 1), dtype=np.uint8), ["obs_0_0", "obs_1_0"], ["integer"] * 2, [0, 0], [255, 255]),
        (spaces.Box(-1, 1, ()), ["obs"], ["real"], [-1], [1]),
        (spaces.Discrete(5, start=-2), ["obs"], ["integer"], [-2], [2]),
        (spaces.Discrete(2), ["obs"], ["binary"], [0], [1]),
        (spaces.MultiBinary(3), ["obs_0", "obs_1", "obs_2"], ["binary"] * 3, [0] * 3, [1] * 3),
        (spaces.MultiDiscrete([3, 2]), ["obs_0", "obs_1"], ["integer", "binary"], [0, 0], [2, 1]),
        (
            spaces.Dict(door=spaces.Discrete(2), place=spaces.Box(0, 9, (2,)), speed=spaces.Box(-1, 1, (1,))),
            ["door", "place_0", "place_1", "speed"], ["binary", "real", "real", "real"], [0, 0, 0, -1], [1, 9, 9, 1],
        ),
        (
            spaces.Tuple([spaces.Discrete(4), spaces.Dict({"a": spaces.MultiBinary(2)})]),
            ["item0", "item1_a_0", "item1_a_1"], ["integer", "binary", "binary"], [0, 0, 0], [3, 1, 1],
        ),
    ],
)  # fmt: skip
def test_observation_spaces(space, names, kinds, low, high):
    env = Still(space)
    base = describe(env)
    assert list(base.features.names) == names
    assert list(base.features.kinds) == kinds
    assert base.features.low.tolist() == low
    assert base.features.high.tolist() == high
    space.seed(1)
    observed = base.observe(space.sample())
    assert ((observed >= low) & (observed <= high)).all()
    venv = gym.vector.SyncVectorEnv([lambda: Still(space)] * 3)
    batch, _ = venv.reset(seed=5)
    together = describe(venv).encode(batch, 3)
    singles = [Still(space).reset(seed=5 + i)[0] for i in range(3)]
    np.testing.assert_array_equal(together, np.stack([base.observe(one) for one in singles]))


@pytest.mark.parametrize(
    ("space", "kind", "n", "size"),
    [
        (spaces.Discrete(4, start=3), "discrete", 4, 1),
        (spaces.Box(-1, 1, (2, 2)), "box", 1, 4),
        (spaces.MultiDiscrete([3, 4]), "multi", 1, 2),
        (spaces.MultiBinary(3), "multi", 1, 3),
    ],
)
def test_action_spaces(space, kind, n, size):
    base = describe(Still(spaces.Discrete(2), space))
    assert (base.actions.kind, base.actions.n, base.actions.size) == (kind, n, size)
    space.seed(0)
    sample = space.sample()
    assert space.contains(base.action(np.ravel(sample) if kind != "discrete" else sample))
    if kind != "discrete":
        with pytest.raises(CustardError, match=r"an action is one number for each of .*, got an array of shape"):
            base.action(np.zeros((1, size + 1)))


@pytest.mark.parametrize(
    ("name", "features", "observation", "encoded", "action"),
    [
        ("FrozenLake-v1", ("row", "column"), 6, [1, 2], "left"),
        ("FrozenLake8x8-v1", ("row", "column"), 63, [7, 7], "left"),
        ("CliffWalking-v1", ("row", "column"), 36, [3, 0], "up"),
        ("Taxi-v4", ("row", "column", "passenger", "destination"), 328, [3, 1, 2, 0], "south"),
        ("Blackjack-v1", ("player_sum", "dealer_card", "usable_ace"), (20, 5, 1), [20, 5, 1], "stick"),
    ],
)
def test_toy_text_is_decoded(name, features, observation, encoded, action):
    base = describe(gym.make(name))
    assert base.features.names == features
    assert base.features.integer.all()
    assert base.observe(observation).tolist() == encoded
    assert base.actions.names[0] == action
    assert (base.features.low <= encoded).all()
    assert (base.features.high >= encoded).all()


@pytest.mark.parametrize(
    ("name", "feature", "action"),
    [
        ("CartPole-v1", "pole_angle", "push_right"),
        ("MountainCar-v0", "velocity", "no_push"),
        ("MountainCarContinuous-v0", "velocity", "force"),
        ("Acrobot-v1", "cos_theta1", "no_torque"),
        ("Pendulum-v1", "sin_theta", "torque"),
        ("custard/PrereqWorld-v0", "has_3", "make_3"),
        ("custard/PotholeWorld-v0", "position", "lane_2"),
    ],
)
def test_known_names(name, feature, action):
    base = describe(gym.make(name))
    assert feature in base.features.names
    assert action in base.actions.names
    if gym.spec(name).vector_entry_point or name == "MountainCar-v0":
        assert describe(gym.make_vec(name, num_envs=2)).features.names == base.features.names


@pytest.mark.parametrize("name", ["LunarLander-v3", "BipedalWalker-v3"])
def test_box2d_names(name):
    pytest.importorskip("Box2D", reason="needs the box2d extra")
    base = describe(gym.make(name))
    assert "binary" in base.features.kinds
    assert not any(feature.startswith("obs_") for feature in base.features.names)


def test_names_fit_the_observation_or_are_not_used():
    stacked = gym.wrappers.FrameStackObservation(gym.make("CartPole-v1"), 2)
    assert describe(stacked).features.names[0] == "obs_0_0"


def test_own_features_and_names():
    env = gym.make("CartPole-v1")
    base = describe(
        env, features=lambda obs: [obs[2] + obs[3], obs[0]], feature_names=["lean", "place"], low=-1, high=1
    )
    assert base.features.names == ("lean", "place")
    assert base.observe(np.array([1, 2, 3, 4], dtype=np.float32)).tolist() == [7, 1]
    venv = gym.make_vec("CartPole-v1", num_envs=3)
    observations, _ = venv.reset(seed=0)
    many = describe(venv, features=lambda obs: [obs[0]], low=-1, high=1)
    np.testing.assert_array_equal(many.encode(observations, 3)[:, 0], observations[:, 0].astype(float))


def test_infinite_bounds_are_named_with_two_ways_out():
    with pytest.raises(CustardError, match=r"'cart_velocity'.*Pass low=/high=, or bounds=\"estimate\""):
        custard.IBMDP(gym.make("CartPole-v1"))


def test_estimated_bounds_are_seeded_and_kept():
    first = describe(gym.make("CartPole-v1"), bounds="estimate", seed=3)
    again = describe(gym.make("CartPole-v1"), bounds="estimate", seed=3)
    other = describe(gym.make("CartPole-v1"), bounds="estimate", seed=4)
    assert np.isfinite(first.features.high).all()
    assert first.features.same_as(again.features)
    assert not first.features.same_as(other.features)
    assert first.features.origin["bounds"] == "estimate"
    assert first.features.origin["seed"] == 3
    tree = custard.Tree.leaf(0, first.features, first.actions)
    assert custard.Tree.from_json(tree.to_json()).features.origin["seed"] == 3
    assert describe(gym.make("CartPole-v1")).features.low[0] == first.features.low[0]  # finite ones stay


def test_bounds_by_name_scalar_or_list():
    env = gym.make("CartPole-v1")
    assert describe(env, low={"cart_velocity": -3}).features.low[1] == -3
    assert describe(env, low=-1, high=1).features.high.tolist() == [1] * 4
    for bad in ([1, 2], "x", {"speed": 3}):
        with pytest.raises(CustardError):
            describe(env, low=bad)
    with pytest.raises(CustardError, match="low must not exceed high"):
        describe(env, low=2, high=1)


@pytest.mark.parametrize(
    "space", [spaces.Text(5), spaces.Graph(spaces.Discrete(2), None), spaces.Sequence(spaces.Discrete(2))]
)
def test_unsupported_spaces_say_what_is_supported(space):
    with pytest.raises(CustardError, match="is not supported"):
        describe(Still(space))
    with pytest.raises(CustardError, match="action space"):
        describe(Still(spaces.Discrete(2), space))


def test_actions_are_called_what_the_environments_enumeration_calls_them():
    env = Still(spaces.Box(0, 1, (2,)), spaces.Discrete(3))
    env.actions = IntEnum("Actions", {"left": 0, "right": 1, "Forward": 2})
    assert describe(env).actions.names == ("left", "right", "forward")
    env.actions = IntEnum("Actions", ["left", "right", "forward"])  # from 1 on: they are no numbers of actions
    assert describe(env).actions.names == ("action_0", "action_1", "action_2")
    env.actions = ["left", "right", "forward"]
    assert describe(env).actions.names == ("action_0", "action_1", "action_2")


def test_every_environment_with_units_has_one_per_feature():
    known = [metadata for metadata in METADATA_BY_NAME.values() if metadata.units]
    assert len(known) > 6
    for metadata in known:
        assert len(metadata.units) == len(metadata.features) == len(set(metadata.features))


def test_trees_whose_features_had_no_names_fit_an_environment_that_names_them_now():
    env = gym.make("CartPole-v1")
    base = describe(env)
    tree = custard.Tree.stump(
        2, 0.0, 0, 1, replace(base.features, names=("obs_0", "obs_1", "obs_2", "obs_3")), base.actions
    )
    assert custard.evaluate(tree, "CartPole-v1", episodes=3).mean > 5
    other = custard.Tree.stump(
        0, 0.0, 0, 1, replace(base.features, names=("obs_0", "x", "obs_2", "obs_3")), base.actions
    )
    with pytest.raises(CustardError, match="asks about"):
        custard.evaluate(other, "CartPole-v1", episodes=3)


def test_text_in_a_dict_is_left_out_with_a_warning():
    space = spaces.Dict(direction=spaces.Discrete(4), image=spaces.Box(0, 9, (2,)), mission=spaces.Text(20))
    with pytest.warns(UserWarning, match="text in observations is left out: 'mission'"):
        base = describe(Still(space))
    assert base.features.names == ("direction", "image_0", "image_1")
    seen = {"direction": 2, "image": np.array([1.0, 5.0]), "mission": "get to the green goal square"}
    assert base.observe(seen).tolist() == [2.0, 1.0, 5.0]


def test_a_dict_of_text_alone_is_not_supported():
    with pytest.raises(CustardError, match="is not supported"):
        describe(Still(spaces.Dict(mission=spaces.Text(20))))


@pytest.mark.parametrize(
    "bad",
    [
        dict(names=("a", "a"), low=[0, 0], high=[1, 1]),
        dict(names=("a",), low=[0, 0], high=[1, 1]),
        dict(names=(), low=[], high=[]),
        dict(names=("a",), low=[np.nan], high=[1]),
        dict(names=("a",), low=[0], high=[1], kinds=("odd",)),
    ],
)
def test_features_are_checked(bad):
    with pytest.raises(CustardError):
        Features(**bad)
