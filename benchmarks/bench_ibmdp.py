"""IBMDP steps a second: the native vector against the single wrapper, and the wrapper's cost over a foreign vector.

.venv/bin/python benchmarks/bench_ibmdp.py
"""

import gymnasium as gym
import numpy as np
from timing import best_of, row

import custard

TIGHT = dict(low=[-2, -2, -0.14, -1.4], high=[2, 2, 0.14, 1.4])
WORLDS = [
    ("custard/CartPole-v0", {}, dict(splits=3, max_depth=2, **TIGHT)),
    ("custard/PrereqWorld-v0", dict(m=7), dict(splits=1)),
    ("custard/PotholeWorld-v0", {}, dict(splits=3)),
]
MANY, CALLS, ONE = 4096, 50, 2000


def random_actions(env, count, seed=0):
    env.action_space.seed(seed)
    return [env.action_space.sample() for _ in range(count)]


def native_against_single():
    for name, env_kwargs, kwargs in WORLDS:
        many = custard.VectorIBMDP(gym.make_vec(name, num_envs=MANY, **env_kwargs), **kwargs)
        one = custard.IBMDP(gym.make(name, **env_kwargs), **kwargs)
        many.reset(seed=0)
        one.reset(seed=0)
        batches, singles = random_actions(many, CALLS), random_actions(one, ONE)

        def step_many(many=many, batches=batches):
            for actions in batches:
                many.step(actions)

        def step_one(one=one, singles=singles):
            for action in singles:
                *_, terminated, truncated, _ = one.step(action)
                if terminated or truncated:
                    one.reset()

        seconds = best_of(7, many=step_many, one=step_one)
        fast, slow = MANY * CALLS / seconds["many"], ONE / seconds["one"]
        row(f"{name}: native vector / single wrapper", fast / slow, 100, f"{slow:,.0f} steps/s single")
        row(f"{name}: native vector, million steps/s on one core", fast / 1e6, 10)


def wrapper_over_a_foreign_vector(count=256, calls=200):
    for mode in ("vector_entry_point", "sync"):
        base = gym.make_vec("CartPole-v1", num_envs=count, vectorization_mode=mode)
        inner = gym.make_vec("CartPole-v1", num_envs=count, vectorization_mode=mode)
        wrapped = custard.VectorIBMDP(inner, splits=3, **TIGHT)
        base.reset(seed=0)
        wrapped.reset(seed=0)
        turns = calls if mode != "sync" else calls // 10
        batches = np.random.default_rng(0).integers(2, size=(turns, count))  # base actions only: the dearest case

        def step(env, batches=batches):
            for actions in batches:
                env.step(actions)

        seconds = best_of(9, base=lambda base=base, s=step: s(base), wrapped=lambda w=wrapped, s=step: s(w))
        cost = (seconds["wrapped"] - seconds["base"]) / seconds["base"]
        row(f"CartPole-v1 × {count} ({mode}): wrapper's cost / environment's", cost, 1, "less is better")


if __name__ == "__main__":
    native_against_single()
    wrapper_over_a_foreign_vector()
