"""What environments declare and what they then do: time limits, bounds, names."""

import gymnasium as gym
import numpy as np
import pytest

import custard
from custard.core.errors import CustardError
from custard.task.source import source


class Late(gym.Env):
    """Acting rightly pays only after twenty steps; `limit` ends an episode, otherwise nothing does."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(2)

    def __init__(self, after=20, limit=None):
        self.after, self.limit = after, limit

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.see(), {}

    def see(self):
        self.x = self.np_random.uniform(-1, 1, 1).astype(np.float32)
        return self.x

    def step(self, action):
        self.t += 1
        reward = float(self.t > self.after and action == (self.x[0] > 0))
        return self.see(), reward, False, self.limit is not None and self.t >= self.limit, {}


gym.register("CustardTest/Late-v0", Late, max_episode_steps=20)


def test_a_time_limit_among_the_arguments_is_the_one_that_counts():
    run = custard.learn("CustardTest/Late-v0", env_kwargs={"max_episode_steps": 60}, budget=30_000)
    assert custard.evaluate(run.tree, "CustardTest/Late-v0", 20, env_kwargs={"max_episode_steps": 60}).mean > 38
    short = {"max_episode_steps": 50}
    for env in ("custard/CartPole-v0", "CartPole-v1"):
        run = custard.learn(env, env_kwargs=short, budget=20_000)
        assert custard.evaluate(run.tree, env, 10, env_kwargs=short).lengths.max() <= 50


def test_the_papers_environments_are_compiled_whatever_their_limit():
    assert all(source(f"custard/{name}-v0").make_compiled for name in ("CartPole", "PrereqWorld", "PotholeWorld"))


def test_where_nothing_ends_an_episode_the_budget_is_divided_among_short_ones():
    with pytest.warns(UserWarning, match="declares no time limit"):
        run = custard.learn(lambda: Late(after=0), budget=50_000)
    assert run.steps <= 50_000
    assert run.tree.n_leaves == 2
    assert abs(run.tree.threshold[0]) < 0.1


@pytest.mark.parametrize("method", ["mfec", "dqn", "ppo", "viper-dqn"])
@pytest.mark.parametrize("budget", [2_000, 12_000])
def test_a_small_budget_is_kept_judging_included(method, budget):
    """Even on CartPole, whose presets judge a tree in thousands of episodes; what is running may be finished."""
    run = custard.learn("CartPole-v1", method, budget=budget, seed=3)
    assert budget / 2 <= run.steps <= 1.6 * budget


class Ring(gym.Env):
    """Ten places in a ring that can be told apart; the sixth pays, and nothing ends."""

    observation_space, action_space = gym.spaces.Discrete(10), gym.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return self.at, {}

    def step(self, action):
        self.at = (self.at + int(action) - 1) % 10
        return self.at, float(self.at == 5), False, False, {}


def test_where_nothing_ends_an_episode_a_table_is_learned_in_short_ones_too():
    with pytest.warns(UserWarning, match="on episodes of 100 steps"):
        run = custard.learn(Ring, budget=20_000)
    assert run.steps <= 1.1 * 20_000
    assert run.value == 96.0


class Beyond(gym.Env):
    """Whole numbers that leave the space they were declared in."""

    observation_space, action_space = gym.spaces.MultiDiscrete([5, 3]), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return self.see(), {}

    def see(self):
        self.x = self.np_random.integers(-3, 9, 2)
        return self.x

    def step(self, action):
        self.t += 1
        reward = float(action == (self.x[0] > 6))
        return self.see(), reward, False, self.t == 10, {}


def test_whole_numbers_beyond_their_bounds_are_refused():
    with pytest.raises(CustardError, match="observation"):
        custard.learn(Beyond, budget=20_000)


def test_a_tree_with_names_of_the_users_own_can_be_evaluated():
    env = lambda: Late(after=0, limit=10)  # noqa: E731
    tree = custard.learn(env, feature_names=["tilt"], budget=20_000).tree
    assert tree.features.names == ("tilt",)
    again = custard.Tree.from_json(tree.to_json())
    assert custard.evaluate(again, env, 20).mean > 9
    other = custard.learn("CartPole-v1", budget=20_000).tree
    with pytest.raises(CustardError, match="asks about"):
        custard.evaluate(other, env, 5)


def test_two_actions_of_one_name_are_refused():
    env = Late()
    env.action_names = ("stay", "stay")
    with pytest.raises(CustardError, match="two actions are called 'stay'"):
        custard.learn(env, budget=3000)


def test_numbers_of_numpy_are_numbers():
    run = custard.learn("custard/PrereqWorld-v0", env_kwargs={"m": 4}, budget=np.int64(5_000_000), patience=np.int64(2))
    assert run.value == -2.0
    with pytest.raises(CustardError, match=r"seeds=1\.5"):
        custard.learn("CartPole-v1", seeds=1.5)


def test_a_policy_that_answers_once_for_many_is_told_so():
    with pytest.raises(CustardError, match="one action each is needed"):
        custard.evaluate(lambda x: 0, "CartPole-v1", 3)


class Old(Late):
    """Resets as environments did before Gymnasium."""

    def reset(self, *, seed=None, options=None):
        return super().reset(seed=seed)[0]


def test_an_environment_that_resets_in_the_old_way_is_told_so():
    with pytest.raises(CustardError, match="an observation and a dictionary on reset"):
        custard.learn(lambda: Old(limit=10), budget=1000)


def test_an_observation_that_is_no_number():
    tree = custard.learn("CartPole-v1", budget=20_000).tree
    with pytest.raises(CustardError, match="an observation is numbers"):
        tree.act(np.array(["a", "b", "c", "d"]))


class Battery(gym.Env):
    """A robot 14 cells from its dock; episodes are truncated when its battery is empty, and after 200 steps."""

    observation_space, action_space = gym.spaces.Box(0.0, 20.0, (2,)), gym.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.charge, self.t = 14, 20, 0
        return self.see(), {}

    def see(self):
        return np.array([self.place, self.charge], dtype=np.float32)

    def step(self, action):
        self.place, self.t = int(np.clip(self.place + (1 if action else -1), 0, 14)), self.t + 1
        self.charge = 20 if self.place == 0 else self.charge - 1
        return self.see(), 3.0 if self.place >= 3 else 1.0, False, self.charge <= 0 or self.t >= 200, {}


def test_the_step_at_which_the_first_episodes_are_cut_need_not_be_the_limit():
    run = custard.learn(Battery, budget=20_000)
    assert run.value > 200.0  # 20 steps without ever charging earn 60


class Line(gym.Env):
    """Go right three times; where one is comes as an array without dimensions."""

    observation_space, action_space = gym.spaces.Discrete(6), gym.spaces.Discrete(2)

    def see(self):
        return np.array(self.place)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.t = 2, 0
        return self.see(), {}

    def step(self, action):
        self.place, self.t = int(np.clip(self.place + (1 if action else -1), 0, 5)), self.t + 1
        goal = self.place == 5
        return self.see(), 1.0 if goal else -0.01, goal, self.t >= 30, {}


class Maze(gym.Env):
    """Six rows and columns, the third row a wall with a gap at its end; the goal is behind it, fourteen steps away."""

    observation_space, action_space = gym.spaces.MultiDiscrete([6, 6]), gym.spaces.Discrete(4)

    def __init__(self, scale=1.0):
        self.scale = scale

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.t = np.zeros(2, dtype=int), 0
        return self.place.copy(), {}

    def step(self, action):
        after, self.t = np.clip(self.place + [(0, 1), (1, 0), (0, -1), (-1, 0)][action], 0, 5), self.t + 1
        self.place = self.place if after[0] == 2 and after[1] != 5 else after
        goal = self.place.tolist() == [5, 0]
        return self.place.copy(), self.scale * (1.0 if goal else -0.01), goal, self.t >= 60, {}


@pytest.mark.parametrize("scale", [1e-12, 1e-9, 1.0, 1e6])
def test_small_and_large_rewards_are_worth_the_same(scale):
    run = custard.learn(Maze, budget=20_000, env_kwargs={"scale": scale})
    assert run.value == pytest.approx(0.86 * scale, rel=1e-6, abs=0.0)


def test_a_number_observed_as_an_array_is_a_number():
    assert custard.learn(Line, budget=5_000).value == pytest.approx(0.98)


@pytest.mark.parametrize("preset", ["tuned", "paper"])
@pytest.mark.parametrize("method", ["mfec", "dqn", "ppo", "viper-dqn"])
def test_a_small_budget_is_kept_where_nothing_ends_an_episode(method, preset):
    run = custard.learn(lambda: Late(after=0), method, budget=5_000, max_depth=2, preset=preset)
    assert run.steps <= 1.6 * 5_000
