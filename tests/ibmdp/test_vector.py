import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

import custard
from custard import IBMDP, CustardError, VectorIBMDP

TIGHT = dict(low=[-2, -2, -0.14, -1.4], high=[2, 2, 0.14, 1.4])
CASES = [
    ("custard/CartPole-v0", {}, dict(splits=3, max_depth=3, **TIGHT)),
    ("custard/CartPole-v0", {}, dict(splits=2, observation="bounds", **TIGHT)),
    ("custard/PrereqWorld-v0", dict(m=7, rho=0.3), dict(splits=1, max_queries=5)),
    ("custard/PrereqWorld-v0", dict(m=5), dict(splits=2, mask_useless=False, max_depth=4)),
    ("custard/PotholeWorld-v0", {}, dict(splits="parameterised")),
    ("MountainCar-v0", dict(max_episode_steps=20), dict(splits=4)),
    ("FrozenLake-v1", {}, dict(splits=1)),
    ("Pendulum-v1", dict(max_episode_steps=20), dict(splits="parameterised", max_depth=2)),
    ("Blackjack-v1", {}, dict(splits=1)),
]


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_same_trajectories_as_the_single_one(case, mode):
    name, env_kwargs, kwargs = case
    count = 7
    single = gym.vector.SyncVectorEnv(
        [lambda: IBMDP(gym.make(name, **env_kwargs), **kwargs)] * count, autoreset_mode=mode
    )
    sync = gym.make_vec(
        name, num_envs=count, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode}, **env_kwargs
    )
    others = [VectorIBMDP(sync, **kwargs)]
    if name.startswith("custard"):
        others.append(VectorIBMDP(gym.make_vec(name, num_envs=count, autoreset_mode=mode, **env_kwargs), **kwargs))
    observation, info = single.reset(seed=3)
    for other in others:
        assert other.single_action_space == single.single_action_space
        assert other.single_observation_space == single.single_observation_space
        seen, infos = other.reset(seed=3)
        np.testing.assert_array_equal(observation, seen)
        np.testing.assert_array_equal(info["action_mask"], infos["action_mask"])
    single.action_space.seed(0)
    ended = 0
    for _ in range(250):
        actions = single.action_space.sample()
        expected = single.step(actions)
        over = expected[2] | expected[3]
        ended += over.sum()
        for other in others:
            given = other.step(actions)
            for a, b in zip(expected[:4], given[:4], strict=True):
                np.testing.assert_array_equal(a, b)
                assert a.dtype == b.dtype
            for key in ("action_mask", "depth"):
                np.testing.assert_array_equal(expected[4][key], given[4][key])
            if mode == "SameStep":
                for i in np.flatnonzero(over):
                    np.testing.assert_array_equal(expected[4]["final_obs"][i], given[4]["final_obs"][i])
            asked = ~over & (expected[4]["depth"] > 0)
            np.testing.assert_array_equal(expected[4]["discount"][asked], given[4]["discount"][asked])
    assert ended > 0


def together(name, count, **kwargs):
    return VectorIBMDP(gym.make_vec(name, num_envs=count, vectorization_mode="vector_entry_point"), **kwargs)


def test_a_vector_environment_that_steps_as_one_waits_for_all():
    venv = together("CartPole-v1", 3, splits=1, **TIGHT)
    venv.reset(seed=0)
    x = venv.base_envs.x.copy()
    _, reward, _, _, infos = venv.step(np.array([0, 2, 3]))
    assert infos["waiting"].tolist() == [True, False, False]
    assert reward.tolist() == [0.0, -0.01, -0.01]
    assert infos["discount"].tolist() == [1.0, 1.0, 1.0]
    np.testing.assert_array_equal(venv.base_envs.x, x)
    _, reward, _, _, infos = venv.step(np.array([1, 1, 2]))  # the first part's action is ignored: it waits
    assert infos["waiting"].tolist() == [True, True, False]
    _, reward, _, _, infos = venv.step(np.array([1, 1, 1]))
    assert not infos["waiting"].any()
    assert reward.tolist() == [1.0, 1.0, 1.0]
    assert infos["discount"].tolist() == [0.99] * 3
    assert infos["depth"].tolist() == [0, 0, 0]
    assert (venv.base_envs.x != x).any()


def test_waiting_parts_follow_the_base_environment_exactly():
    """Without the waiting steps the base environment sees the same actions as when stepped directly."""
    venv = together("CartPole-v1", 4, splits=1, **TIGHT)
    base = gym.make_vec("CartPole-v1", num_envs=4, vectorization_mode="vector_entry_point")
    venv.reset(seed=1)
    base.reset(seed=1)
    rng = np.random.default_rng(0)
    chosen = np.zeros(4, dtype=np.int64)
    ready = np.zeros(4, dtype=bool)
    over = np.zeros(4, dtype=bool)
    for _ in range(2000):
        actions = rng.integers(6, size=4)
        new = ~ready & ((actions < 2) | over)
        chosen = np.where(new & ~over, actions, np.where(new, chosen, chosen))
        ready |= new
        _, reward, terminated, _, infos = venv.step(actions)
        if ready.all():
            observation, expected, term, trunc, _ = base.step(chosen)
            np.testing.assert_array_equal(venv.base_envs.x, observation.astype(float))
            np.testing.assert_array_equal(reward, expected)
            np.testing.assert_array_equal(terminated, term)
            over = term | trunc
            ready[:] = False
        np.testing.assert_array_equal(infos["waiting"], ready)


def test_any_other_vector_environment_works():
    asynchronous = gym.make_vec("MountainCar-v0", num_envs=2, vectorization_mode="async")
    venv = VectorIBMDP(gym.wrappers.vector.RecordEpisodeStatistics(asynchronous), splits=2)
    try:
        venv.reset(seed=0)
        venv.action_space.seed(0)
        ended = 0
        for _ in range(1500):
            _, _, terminated, truncated, _ = venv.step(venv.action_space.sample())
            ended += (terminated | truncated).sum()
        assert ended > 0
    finally:
        venv.close()


def test_without_autoreset_the_user_resets():
    sync = gym.make_vec(
        "CartPole-v1", num_envs=2, vectorization_mode="sync", vector_kwargs={"autoreset_mode": AutoresetMode.DISABLED}
    )
    native = gym.make_vec("custard/CartPole-v0", num_envs=2, autoreset_mode=AutoresetMode.DISABLED)
    for base in (sync, native):
        venv = VectorIBMDP(base, splits=1, **TIGHT)
        venv.reset(seed=0)
        over = np.zeros(2, dtype=bool)
        while not over.any():
            _, _, terminated, truncated, _ = venv.step(np.array([1, 0]))
            over = terminated | truncated
        with pytest.raises(CustardError, match="reset_mask"):
            venv.step(np.array([1, 0]))
        venv.reset(options={"reset_mask": over})
        venv.step(np.array([1, 0]))


def test_observations_and_masks_are_fresh():
    venv = VectorIBMDP(gym.make_vec("custard/PrereqWorld-v0", num_envs=4, m=3), splits=1)
    first, infos = venv.reset(seed=0)
    kept = first.copy(), infos["action_mask"].copy()
    venv.step(np.array([3, 4, 5, 0]))
    np.testing.assert_array_equal(first, kept[0])
    np.testing.assert_array_equal(infos["action_mask"], kept[1])


def test_own_features_over_a_native_environment():
    kwargs = dict(features=lambda obs: [obs[2] + 0.1 * obs[3]], feature_names=["lean"], low=-0.2, high=0.2, splits=3)
    native = VectorIBMDP(gym.make_vec("custard/CartPole-v0", num_envs=3), **kwargs)
    sync = VectorIBMDP(gym.make_vec("custard/CartPole-v0", num_envs=3, vectorization_mode="sync"), **kwargs)
    a, _ = native.reset(seed=0)
    b, _ = sync.reset(seed=0)
    np.testing.assert_array_equal(a, b)
    for _ in range(100):
        actions = native.action_space.sample()
        for left, right in zip(native.step(actions)[:4], sync.step(actions)[:4], strict=True):
            np.testing.assert_array_equal(left, right)


def test_mistakes():
    venv = VectorIBMDP(gym.make_vec("custard/PrereqWorld-v0", num_envs=2, m=3), splits=1)
    with pytest.raises(CustardError, match="reset"):
        venv.step(np.array([0, 0]))
    venv.reset(seed=0)
    for bad in (np.array([0, 99]), np.array([-1, 0])):
        with pytest.raises(CustardError, match="outside"):
            venv.step(bad)
    for bad in (np.array([0]), "ab", {"choice": 1}):
        with pytest.raises(CustardError):
            venv.step(bad)
    with pytest.raises(CustardError, match="seeds"):
        venv.reset(seed=[1, 2, 3])


def test_import_is_lazy():
    assert custard.VectorIBMDP is VectorIBMDP
