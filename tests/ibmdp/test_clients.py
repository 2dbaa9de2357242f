"""Real clients: the learners people already use train on the IBMDP unchanged."""

import gymnasium as gym
import pytest

import custard

sb3 = pytest.importorskip("stable_baselines3", reason="needs the sb3 extra")
contrib = pytest.importorskip("sb3_contrib", reason="needs the sb3 extra")


def env(**kwargs):
    base = gym.make("CartPole-v1")
    return custard.IBMDP(base, splits=3, low=[-2, -2, -0.14, -1.4], high=[2, 2, 0.14, 1.4], max_depth=2, **kwargs)


@pytest.mark.parametrize("observation", ["full", "bounds"])
def test_stable_baselines_checker(observation):
    from stable_baselines3.common.env_checker import check_env

    check_env(env(observation=observation), warn=True)


def test_ppo_and_dqn_train():
    sb3.PPO("MlpPolicy", env(), n_steps=64, batch_size=64, n_epochs=1, device="cpu").learn(128)
    sb3.DQN("MlpPolicy", env(), learning_starts=20, buffer_size=500, device="cpu").learn(100)


def test_a_masked_policy_over_bounds_trains_and_is_a_tree():
    import numpy as np

    wrapped = env(observation="bounds")
    model = contrib.MaskablePPO("MlpPolicy", wrapped, n_steps=64, batch_size=64, n_epochs=1, device="cpu", seed=0)
    model.learn(128)

    def policy(bounds, mask):
        return model.predict(bounds, action_masks=mask, deterministic=True)[0]

    tree = custard.extract(policy, wrapped)
    assert tree.depth <= 2
    in_ibmdp = custard.evaluate(policy, wrapped, episodes=5, seed=1)
    as_tree = custard.evaluate(tree, "CartPole-v1", episodes=5, seed=1)
    np.testing.assert_array_equal(in_ibmdp.returns, as_tree.returns)
