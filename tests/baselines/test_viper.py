"""VIPER: known answers from every kind of expert, limits kept, mistakes named."""

from __future__ import annotations

import sys
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import custard
from custard.baselines import viper
from custard.cli import main
from custard.core.spaces import describe
from custard.experts import dqn
from custard.experts.expert import from_q_function
from custard.task.problem import Problem
from custard.task.settings import settings_for
from custard.task.source import source

QUICK = {"iterations": 8, "test_rollouts": 20, "final_rollouts": 100}


def balance(x: np.ndarray) -> np.ndarray:
    """Q-values of a hand-made CartPole expert that never falls: push to where the pole leans and the cart should go."""
    push = 0.1 * x[:, 0] + 0.3 * x[:, 1] + 5.0 * x[:, 2] + 1.0 * x[:, 3]
    return np.stack([-push, push], axis=1)


class Dealt(gym.Env):
    """A number from 0 to 7 is dealt at each of 20 steps; every action is worth 1, so that all trees return 20."""

    observation_space = gym.spaces.Box(0, 7, (1,))
    action_space = gym.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: object = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.elapsed = 0
        return self.deal(), {}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.elapsed += 1
        return self.deal(), 1.0, False, self.elapsed == 20, {}

    def deal(self) -> np.ndarray:
        return np.array([self.np_random.integers(8)], dtype=np.float32)


def pairs(x: np.ndarray) -> np.ndarray:
    """Q-values of an expert of `Dealt`: action 1 for 2, 3, 6 and 7, which takes a tree of four leaves."""
    is_one = x[:, 0] // 2 % 2
    return np.stack([1.0 - is_one, is_one], axis=1)


def problem(env: str, seed: int = 0, max_depth: int | None = None, **kwargs: object) -> Problem:
    where = source(env, kwargs)
    return Problem(where, describe(where.make_vec(1)), seed, max_depth)


def test_a_function_is_an_expert() -> None:
    run = custard.learn("custard/CartPole-v0", "viper-dqn", max_depth=2, expert=balance, **QUICK)
    assert run.tree.depth <= 2
    assert custard.evaluate(run.tree, "custard/CartPole-v0", 200, seed=9).mean > 150
    assert run.message.endswith("expert: function")


def test_backward_induction_teaches_prereq_world() -> None:
    run = custard.learn("custard/PrereqWorld-v0", "viper-bi", env_kwargs={"m": 7}, **QUICK)
    assert run.value == -4.0
    assert run.tree.n_leaves == 5


def test_backward_induction_teaches_the_frozen_lake() -> None:
    run = custard.learn("FrozenLake-v1", "viper-bi", iterations=2, test_rollouts=30, final_rollouts=0, seed=1)
    assert run.value > 0.4


def test_limits_are_kept() -> None:
    for depth, leaves in ((0, None), (1, None), (3, 4), (None, 5)):
        run = custard.learn(
            "custard/PotholeWorld-v0", "viper-bi", max_depth=depth, max_leaves=leaves, leaf_ladder=False, iterations=2,
            test_rollouts=10, final_rollouts=0,
        )  # fmt: skip
        assert depth is None or run.tree.depth <= depth
        assert leaves is None or run.tree.n_leaves <= leaves


def test_the_same_seed_gives_the_same_tree() -> None:
    trees = [
        custard.learn(
            "custard/PotholeWorld-v0", "viper-bi", seed=3, iterations=2, max_leaves=12, **{"patience": 1}
        ).tree
        for _ in range(2)
    ]
    assert trees[0] == trees[1]


def test_the_dqn_expert_solves_a_small_world(tmp_path: Path) -> None:
    pytest.importorskip("jax", reason='needs the extra "neural"')
    file = tmp_path / "expert.npz"
    settings = {"steps": 6000, "warmup": 500, "num_envs": 16, "checks": 6, "check_rollouts": 5, "gamma": 0.95}
    run = custard.learn(
        "custard/PrereqWorld-v0",
        "viper-dqn",
        env_kwargs={"m": 4},
        expert_settings=settings,
        expert_out=str(file),
        **QUICK,
    )
    assert run.value == -2.0
    assert run.tree.n_leaves == 3
    assert run.steps > 6000
    again = custard.learn("custard/PrereqWorld-v0", "viper-dqn", env_kwargs={"m": 4}, expert=str(file), **QUICK)
    assert again.value == -2.0


def test_a_network_saved_is_the_network_loaded(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    shapes = ((3 * 5, 4), (4,), (4, 4), (4,), (4, 1), (1,), (4, 2), (2,))
    weights = tuple(rng.normal(size=shape).astype(np.float32) for shape in shapes)
    network = dqn.Network(np.zeros(3), np.ones(3), 2, weights)
    network.save(tmp_path / "n.npz")
    x = rng.normal(size=(7, 3))
    assert (dqn.Network.load(tmp_path / "n.npz").q(x) == network.q(x)).all()
    (tmp_path / "bad.npz").write_bytes(b"no archive")
    with pytest.raises(custard.CustardError, match="not a Q-network"):
        dqn.Network.load(tmp_path / "bad.npz")


def test_stable_baselines_models_are_experts(tmp_path: Path) -> None:
    sb3 = pytest.importorskip("stable_baselines3", reason='needs the extra "sb3"')
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    venv = VecNormalize(DummyVecEnv([lambda: gym.make("CartPole-v1")]))
    model = sb3.DQN(
        "MlpPolicy", venv, learning_starts=100, buffer_size=2000, seed=0, policy_kwargs={"net_arch": [16]}, device="cpu"
    )
    model.learn(600)
    model.save(tmp_path / "dqn.zip")
    venv.save(str(tmp_path / "stats.pkl"))
    ppo = sb3.PPO("MlpPolicy", "CartPole-v1", n_steps=64, batch_size=64, n_epochs=1, seed=0, device="cpu").learn(64)
    ppo.save(tmp_path / "ppo.zip")
    few = {"iterations": 2, "test_rollouts": 5, "final_rollouts": 0}
    saved, statistics = str(tmp_path / "dqn.zip"), str(tmp_path / "stats.pkl")
    experts: list[dict] = [{"expert": saved, "normalise": statistics}, {"expert": saved, "weights": "q"}]
    for given in (*experts, {"expert": str(tmp_path / "ppo.zip")}):
        run = custard.learn("CartPole-v1", "viper-dqn", max_depth=3, **given, **few)
        assert run.tree.depth <= 3
    some = (
        "--set",
        f"expert={saved}",
        f"normalise={statistics}",
        "iterations=2",
        "test_rollouts=5",
        "final_rollouts=0",
    )
    where = ("--max-depth", "2", "--episodes", "5", "--out", str(tmp_path / "run"))
    with pytest.raises(SystemExit) as left:
        main(["train", "CartPole-v1", "--method", "viper-dqn", *some, *where])
    assert left.value.code == 0
    assert custard.Tree.load(tmp_path / "run" / "tree.json").depth <= 2
    with pytest.raises(custard.CustardError, match="needs an expert with Q-values"):
        custard.learn("CartPole-v1", "viper-dqn", expert=str(tmp_path / "ppo.zip"), weights="q", **few)
    with pytest.raises(custard.CustardError, match="trained for actions"):
        custard.learn("custard/PotholeWorld-v0", "viper-dqn", expert=str(tmp_path / "ppo.zip"), **few)
    # The statistics matter: the same network sees other numbers with and without them.
    from custard.experts.sb3 import load_sb3

    base = problem("CartPole-v1")
    x = np.random.default_rng(0).normal(size=(4, 4)) * 0.05
    plain, normal = (load_sb3(tmp_path / "dqn.zip", base, n) for n in (None, tmp_path / "stats.pkl"))
    assert plain.q is not None
    assert normal.q is not None
    expected = model.q_net(model.policy.obs_to_tensor(venv.normalize_obs(x.astype(np.float32)))[0]).detach().numpy()
    assert np.allclose(normal.q(x), expected, atol=1e-5)
    assert not np.allclose(plain.q(x), normal.q(x))


def test_a_missing_stable_baselines_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    with pytest.raises(custard.CustardError, match=r"custard-rl\[sb3\]"):
        custard.learn("CartPole-v1", "viper-dqn", expert=str(tmp_path / "model.zip"))


def test_a_missing_jax_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(custard.CustardError, match=r"custard-rl\[neural\]"):
        custard.learn("CartPole-v1", "viper-dqn")


def test_viper_plus_prefers_the_tree_that_is_most_like_the_expert() -> None:
    """All trees return 20. Two leaves are enough for that, and act as the expert in 6 of 8 states; four always do."""
    few = {"iterations": 3, "test_rollouts": 30, "final_rollouts": 50, "leaf_ladder": True, "max_leaves": 4}
    smaller, moet = (
        custard.learn(Dealt, "viper-dqn", expert=pairs, fit_variants=False, choose=choose, **few)
        for choose in ("smaller", "moet")
    )
    assert (smaller.value, smaller.tree.n_leaves) == (20.0, 2)
    assert (moet.value, moet.tree.n_leaves) == (20.0, 4)
    states = np.arange(8.0)[:, None]
    assert moet.tree.predict(states).tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
    rows = [row for row in moet.metrics if "mispredictions" in row]
    assert [row["mispredictions"] for row in rows] == [0.0, 0.0, 0.0]
    # One episode tells how they end; an iteration has 10 rollouts, and 30 for each of the trees of 4 and 2 leaves.
    # 200 more judge the tree that is kept.
    assert moet.steps == 20 * (1 + 3 * (10 + 2 * 30) + 200)
    assert smaller.steps == 20 * (1 + 3 * (10 + 2 * (30 + 50)) + 200)


def test_the_value_shown_is_of_episodes_that_chose_nothing() -> None:
    """Of many trees judged on two episodes each, the luckiest is kept: its mean over those is too high."""
    given = {"test_rollouts": 2, "final_rollouts": 0, "iterations": 6, "batch_rollouts": 2, "max_leaves": 3}
    shown = []
    run = custard.learn("custard/CartPole-v0", "viper-dqn", expert=balance, on_progress=shown.append, **given)
    last = shown[-1]
    assert (last.episodes, last.value) == (200, run.value)
    fresh = custard.evaluate(run.tree, "custard/CartPole-v0", 1000, seed=9)
    assert abs(last.value - fresh.mean) < 4 * np.hypot(last.error, fresh.std / 1000**0.5) + 1e-9


def test_mispredictions_decide_only_between_equal_returns() -> None:
    run = custard.learn("custard/CartPole-v0", "viper-dqn", max_depth=2, expert=balance, choose="moet", **QUICK)
    assert custard.evaluate(run.tree, "custard/CartPole-v0", 200, seed=9).mean > 150
    chosen = [(row["validation"], -row["mispredictions"]) for row in run.metrics if "mispredictions" in row]
    assert chosen == sorted(chosen)
    assert chosen[0] < chosen[-1]


def test_weights_are_the_loss_of_the_worst_action() -> None:
    expert = from_q_function(balance, 2)
    x = np.array([[0.0, 0, 0.1, 0], [0, 0, 0, 0]])
    assert viper.state_weights(expert, "auto")(x) == pytest.approx([1.0, 0.0], abs=1e-9)
    assert viper.state_weights(expert, "none")(x).tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"expert": "oracle"}, "unknown expert"),
        ({"expert": "none.zip"}, "no such file"),
        ({"expert": "none.npz"}, "cannot read"),
        ({"expert": lambda x: np.zeros((len(x), 5))}, r"shape \[B, 2\]"),
        ({"expert": lambda x: np.full((len(x), 2), np.nan)}, "NaN"),
        ({"expert": balance, "weights": "policy"}, "action probabilities"),
        ({"weights": "gold"}, "unknown weighting"),
        ({"criterion": "luck"}, "unknown criterion"),
        ({"choose": "moett"}, "unknown choice 'moett': choose one of smaller, moet .did you mean 'moet'"),
        ({"train_share": 0.0}, "train_share"),
        ({"iterations": 0}, "at least 1"),
        ({"max_leaves": 1}, "at least 2"),
        ({"expert_settings": {"stepz": 3}}, "unknown expert setting"),
        ({"expert_preset": "best"}, "unknown preset"),
    ],
)
def test_mistakes_are_one_line(settings: dict, words: str) -> None:
    with pytest.raises(custard.CustardError, match=words) as caught:
        custard.learn("CartPole-v1", "viper-dqn", max_depth=2, **settings)
    assert "\n" not in str(caught.value)


def test_the_papers_numbers_are_a_preset() -> None:
    chosen = settings_for(viper, "custard/PotholeWorld-v0", "paper", {})
    assert (chosen.batch_rollouts, chosen.max_samples, chosen.iterations) == (10, 200_000, 300)
    assert (chosen.train_share, chosen.test_rollouts, chosen.ties) == (0.8, 50, "downstream")
    steps = [
        settings_for(dqn, env, chosen.expert_preset, chosen.expert_settings).steps
        for env in ("custard/CartPole-v0", "custard/PrereqWorld-v0", "custard/PotholeWorld-v0")
    ]
    assert steps == [100_000, 100_000, 1_000_000]


def test_without_a_budget_every_rollout_of_a_batch_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    states = viper.Rollouts.visited_states
    monkeypatch.setattr(viper.Rollouts, "visited_states", lambda *given: sizes.append(len(given[2])) or states(*given))  # type: ignore[func-returns-value]
    custard.learn("custard/CartPole-v0", "viper-dqn", max_depth=2, expert=balance, batch_rollouts=7, **QUICK)
    assert set(sizes) == {7}


def test_continuous_actions_are_refused() -> None:
    with pytest.raises(custard.CustardError, match="discrete actions"):
        custard.learn("Pendulum-v1", "viper-dqn")


@pytest.mark.parametrize(
    ("env", "given", "kwargs"),
    [("custard/PrereqWorld-v0", {"expert": "bi", **QUICK}, {"m": 5}),
     ("custard/PrereqWorld-v0", {"expert": "bi", "choose": "moet", **QUICK}, {"m": 5}),
     ("custard/PrereqWorld-v0", {"budget": 9000, "iterations": 4}, {"m": 3}),
     ("CartPole-v1", {"expert": balance, "budget": 20_000, "patience": 3}, {})],
)  # fmt: skip
def test_it_goes_on_after_any_iteration(env: str, given: dict, kwargs: dict) -> None:
    """With the expert that was trained, the states that were visited and the trees that were judged."""

    def snapshots(state: dict | None = None) -> list:
        settings = viper.Settings(**{"max_samples": 500, **given})
        return list(viper.solve(problem(env, 3, **kwargs), settings, state))

    def parts(snapshot: object) -> list:
        assert snapshot.tree is not None  # type: ignore[attr-defined]
        metrics = {key: repr(value) for key, value in snapshot.metrics.items()}  # type: ignore[attr-defined]
        return [snapshot.steps, snapshot.tree.to_json(), repr(snapshot.value), metrics]  # type: ignore[attr-defined]

    whole = snapshots()
    stored = [k for k, snapshot in enumerate(whole) if snapshot.state is not None]
    assert len(stored) > 1
    assert whole[-1].ended
    for k in stored[: -1 : max(1, len(stored) // 3)]:
        rest = snapshots(whole[k].state())
        assert [parts(each) for each in rest] == [parts(each) for each in whole[k + 1 :]]
