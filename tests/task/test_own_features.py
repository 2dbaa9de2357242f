"""Every method on features that are the user's own: a function's, or those of a wrapped environment."""

import gymnasium as gym
import numpy as np
import pytest

import custard

RUNS = [
    ("tpi", "tuned", 5000),
    ("mfec", "tuned", 5000),
    ("mfec", "paper", 3000),
    ("dqn", "tuned", 4000),
    ("dqn", "paper", 1500),
    ("ppo", "tuned", 4000),
    ("ppo", "paper", 3000),
    ("viper-dqn", "tuned", 5000),
]


def lean(observation):
    return [observation[2] + 0.3 * observation[3], observation[0]]


def seen_in_part():
    low, high = np.array([-10.0, -10.0], np.float32), np.array([10.0, 10.0], np.float32)
    return gym.wrappers.TransformObservation(
        gym.make("CartPole-v1"), lambda x: np.array(lean(x), np.float32), gym.spaces.Box(low, high)
    )


def settings(method):
    return {"expert_settings": {"steps": 2000}, "iterations": 2} if method == "viper-dqn" else {}


@pytest.mark.parametrize(("method", "preset", "budget"), RUNS)
def test_features_of_a_function_on_an_environment_with_presets_and_a_compiled_twin(method, preset, budget):
    given = settings(method) | {"max_depth": 2, "preset": preset, "budget": budget}
    run = custard.learn("CartPole-v1", method, features=lean, **given)
    assert run.tree.features.n_raw == 2
    assert custard.evaluate(run.tree, "CartPole-v1", 10, features=lean).mean >= 8.0


@pytest.mark.parametrize(("method", "preset", "budget"), RUNS)
def test_a_wrapped_environment_is_not_the_one_that_presets_are_for(method, preset, budget):
    given = settings(method) | {"max_depth": 2, "preset": preset, "budget": budget}
    run = custard.learn(seen_in_part, method, **given)
    assert run.tree.features.n_raw == 2
    assert custard.evaluate(run.tree, seen_in_part, 10).mean >= 8.0
