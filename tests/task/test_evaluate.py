import math

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

import custard
from custard import CustardError, Tree, describe, evaluate
from custard.task import evaluate as module
from custard.task.evaluate import EPISODES_BEFORE_PROGRESS, MIN_EVALUATED_EPISODES, Evaluation
from custard.task.source import source

CARTPOLE = describe(gym.make("CartPole-v1"))
LEAN = Tree.stump(2, 0.0, 0, 1, CARTPOLE.features, CARTPOLE.actions)


def test_the_same_episodes_however_they_are_run():
    by_id = evaluate(LEAN, "CartPole-v1", episodes=30, seed=4)
    for env in (gym.make("CartPole-v1"), lambda: gym.make("CartPole-v1")):
        other = evaluate(LEAN, env, episodes=30, seed=4)
        np.testing.assert_array_equal(by_id.returns, other.returns)
        np.testing.assert_array_equal(by_id.lengths, other.lengths)
    narrow = evaluate(LEAN, "CartPole-v1", episodes=30, seed=4, num_envs=3)
    np.testing.assert_array_equal(by_id.returns, narrow.returns)
    prefix = evaluate(LEAN, "CartPole-v1", episodes=10, seed=4)
    np.testing.assert_array_equal(by_id.returns[:10], prefix.returns)
    assert (evaluate(LEAN, "CartPole-v1", episodes=30, seed=5).returns != by_id.returns).any()


@pytest.mark.parametrize("env", ["CartPole-v1", lambda: gym.make("CartPole-v1").env])  # compiled, and by Python
def test_progress_is_heard_and_changes_no_episode(env):
    heard = []
    watched = evaluate(LEAN, env, episodes=120, seed=4, max_steps=50, on_progress=lambda *told: heard.append(told))
    silent = evaluate(LEAN, env, episodes=120, seed=4, max_steps=50)
    np.testing.assert_array_equal(watched.returns, silent.returns)
    np.testing.assert_array_equal(watched.time_limited, silent.time_limited)
    assert not watched.traversal_limited.any()  # a tree asks no question twice
    assert heard == sorted(heard)
    assert heard[-1] == (120, 120)
    assert len(heard) > 1
    few = evaluate(LEAN, env, 120, 4, max_steps=50, seconds=0.0)  # no time at all: the first episodes
    assert few.episodes == (EPISODES_BEFORE_PROGRESS if env == "CartPole-v1" else MIN_EVALUATED_EPISODES)
    np.testing.assert_array_equal(few.returns, silent.returns[: few.episodes])


def test_what_is_no_policy_is_one_line():
    with pytest.raises(CustardError, match=r"not a str: custard.load\('tree.json'\) reads a tree"):
        evaluate("tree.json", "CartPole-v1")
    with pytest.raises(CustardError, match="a policy is a Tree or a function to actions, not a int"):
        evaluate(3, "CartPole-v1")
    run = custard.learn("custard/PrereqWorld-v0", "viper-bi", env_kwargs={"m": 3}, seed=0)
    with pytest.raises(CustardError, match=r"not a Run: its \.tree is one"):
        evaluate(run)


def test_against_a_plain_loop():
    from custard.task.source import episode_seeds

    env = gym.make("CartPole-v1")
    expected = []
    for seed in episode_seeds(2, 10).tolist():
        observation, _ = env.reset(seed=seed)
        total, over = 0.0, False
        while not over:
            observation, reward, terminated, truncated, _ = env.step(LEAN.act(observation))
            total, over = total + reward, terminated or truncated
        expected.append(total)
    assert evaluate(LEAN, "CartPole-v1", episodes=10, seed=2).returns.tolist() == expected


def test_statistics():
    result = evaluate(LEAN, "CartPole-v1", episodes=200, seed=0)
    low, high = result.ci95
    assert low < result.mean < high
    standard_error = result.std / np.sqrt(200)
    assert abs((high - low) / (2 * 1.96 * standard_error) - 1) < 0.15
    data = result.to_json()
    assert data["mean"] == result.mean
    assert len(data["returns"]) == 200
    assert "95 %" in str(result)


def test_any_policy():
    result = evaluate(lambda x: (x[:, 2] > 0).astype(int), "CartPole-v1", episodes=20, seed=4)
    np.testing.assert_array_equal(result.returns, evaluate(LEAN, "CartPole-v1", episodes=20, seed=4).returns)
    with pytest.raises(CustardError, match="returned 1 actions"):
        evaluate(lambda x: [0], "CartPole-v1", episodes=5)


def test_a_policy_over_bounds_in_its_ibmdp():
    env = custard.IBMDP(gym.make("CartPole-v1"), splits=1, low=-1, high=1, max_queries=5)

    def lean(bounds, mask):
        return np.where(bounds[:, 6] - bounds[:, 2] == 1, 2 + 2, (bounds[:, 2] > 0).astype(int))

    tree = custard.extract(lean, env)
    a, b = evaluate(lean, env, episodes=10, seed=3), evaluate(tree, env, episodes=10, seed=3)
    np.testing.assert_array_equal(a.returns, b.returns)
    np.testing.assert_array_equal(a.lengths, b.lengths)
    stuck = evaluate(lambda bounds, mask: np.full(len(bounds), 2), env, episodes=3)
    assert stuck.traversal_limited.all()
    assert "traversal limit" in str(stuck)


class Counter(gym.Env):
    """A continuing task: reward one a step, for ever."""

    observation_space = spaces.Box(0, 1e6, (1,), dtype=np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, fail_at=None, nan_at=None):
        self.fail_at, self.nan_at, self.t = fail_at, nan_at, 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1), {}

    def step(self, action):
        self.t += 1
        if self.t == self.fail_at:
            raise RuntimeError("out of coal")
        return np.array([np.nan if self.t == self.nan_at else self.t]), 1.0, False, False, {}


def test_continuing_tasks_are_cut():
    base = describe(Counter())
    tree = Tree.leaf(0, base.features, base.actions)
    result = evaluate(tree, Counter, episodes=2, max_steps=50)
    assert result.returns.tolist() == [50.0, 50.0]
    assert result.time_limited.all()


def test_environments_that_fail_say_where():
    base = describe(Counter())
    tree = Tree.leaf(0, base.features, base.actions)
    with pytest.raises(CustardError, match="raised RuntimeError at step 3: out of coal"):
        evaluate(tree, Counter, episodes=2, env_kwargs={"fail_at": 3})
    with pytest.raises(CustardError, match="NaN for feature 'obs_0'"):
        evaluate(tree, Counter, episodes=2, env_kwargs={"nan_at": 2})
    with pytest.raises(CustardError, match="could not be made"):
        evaluate(tree, Counter, episodes=2, env_kwargs={"size": 3})


def test_vector_actions():
    base = describe(gym.make("Pendulum-v1"))
    tree = Tree.stump(1, 0.0, np.array([1.0]), np.array([-1.0]), base.features, base.actions)
    result = evaluate(tree, "Pendulum-v1", episodes=3, seed=0)
    assert result.mean < 0
    assert result.lengths.tolist() == [200] * 3


def test_toy_text_is_encoded():
    base = describe(gym.make("CliffWalking-v1"))
    tree = Tree(
        feature=[1, 0, -1, -1, -1], threshold=[10.5, 2.5, 0, 0, 0], children_left=[1, 3, -1, -1, -1],
        children_right=[2, 4, -1, -1, -1], value=[0, 0, 2, 1, 0], features=base.features, actions=base.actions,
    )  # fmt: skip
    assert evaluate(tree, "CliffWalking-v1", episodes=1).mean == -13.0


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("CartPol-v1", "did you mean 'CartPole-v1'"), ("Foo-v1", "unknown environment 'Foo-v1'. Give"),
        ("CartPole-v7", "did you mean 'CartPole-v"), ("nothing:Env-v0", "nothing"),
        ("MountainCar-v0", "environment has position"),
        (3, "an environment is an id"), (lambda: 3, "returned int"), ("CartPole-v99", "CartPole"),
        (gym.make_vec("CartPole-v1", num_envs=2), "does not take one seed per sub-environment"),
    ],
)  # fmt: skip
def test_mistakes(env, message):
    with pytest.raises(CustardError, match=message) as caught:
        evaluate(LEAN, env, episodes=2)
    assert "\n" not in str(caught.value)


def test_no_episodes():
    with pytest.raises(CustardError, match="episodes"):
        evaluate(LEAN, "CartPole-v1", episodes=0)


@pytest.mark.parametrize(
    ("name", "feature", "left", "right"),
    [("CartPole-v1", 2, 0, 1), ("MountainCar-v0", 1, 0, 2), ("Pendulum-v1", 2, [1.5], [-1.5]),
     ("custard/PotholeWorld-v0", 0, 1, 2), ("custard/PrereqWorld-v0", 1, 1, 0)],
)  # fmt: skip
def test_whole_episodes_compiled_equal_those_stepped(name, feature, left, right):
    where = source(name)
    base = custard.describe(where.make_vec(1))
    tree = custard.Tree.stump(feature, 0.01, left, right, base.features, base.actions)
    compiled = custard.evaluate(tree, where, 12, 5, max_steps=150)
    stepped = custard.evaluate(lambda x: tree.predict(x), where, 12, 5, max_steps=150)
    for part in ("returns", "lengths", "time_limited"):
        np.testing.assert_array_equal(getattr(compiled, part), getattr(stepped, part))


def test_one_episode_has_no_spread_and_two_have():
    def judged(*returns):
        count = len(returns)
        return Evaluation(np.array(returns), np.full(count, 3), np.zeros(count, bool), np.zeros(count, bool), 0)

    one, two = judged(4.0), judged(4.0, 6.0)
    assert np.isnan([one.std, *one.ci95]).all()
    assert one.to_json()["std"] is one.to_json()["ci95"] is None
    assert str(one) == "return 4.00 over 1 episode of 3.0 steps"
    assert two.std == pytest.approx(2**0.5)
    assert two.to_json()["std"] == two.std
    assert two.to_json()["ci95"] == [4.0, 6.0]
    assert "95 % interval of the mean 4.00 to 6.00" in str(two)


def test_an_episode_that_terminates_reaches_no_limit():
    base = describe(gym.make("CartPole-v1"))
    result = evaluate(Tree.leaf(0, base.features, base.actions), "CartPole-v1", episodes=4)
    assert not result.time_limited.any()
    assert not result.traversal_limited.any()
    env = custard.IBMDP(gym.make("CartPole-v1"), splits=1, low=[-2, -2, -0.14, -1.4], high=[2, 2, 0.14, 1.4])
    result = evaluate(lambda bounds, mask: np.zeros(len(bounds), dtype=np.int64), env, episodes=2)
    assert not result.time_limited.any()
    assert not result.traversal_limited.any()
    assert (result.lengths < 30).all()


@pytest.mark.parametrize("env", ["CartPole-v1", lambda: gym.wrappers.TransformReward(gym.make("CartPole-v1"), float)])
def test_discounted_returns(env):
    plain, discounted = (evaluate(LEAN, env, 5, seed=1, gamma=gamma) for gamma in (1.0, 0.9))
    assert np.array_equal(plain.returns, plain.lengths)  # every step earns 1
    assert np.array_equal(discounted.lengths, plain.lengths)
    assert np.allclose(discounted.returns, (1 - 0.9**plain.lengths) / (1 - 0.9), rtol=1e-12)
    assert str(discounted).startswith("return discounted by 0.9 ")
    assert discounted.to_json()["gamma"] == 0.9
    assert "gamma" not in plain.to_json()
    with pytest.raises(CustardError, match="gamma must be above 0"):
        evaluate(LEAN, env, 5, gamma=1.5)
    with pytest.raises(CustardError, match="gamma must be above 0"):
        evaluate(LEAN, env, 5, gamma=0.0)


MIXED = Evaluation(
    np.array([1.0, 2.0, 6.0]), np.array([3, 4, 8]), np.array([True, False, False]), np.array([False, True, True]), 7,
    gamma=0.9, forbidden=2,
)  # fmt: skip


def test_what_an_evaluation_says_is_what_it_holds():
    data = MIXED.to_json()
    low, high = MIXED.ci95
    assert data == {
        "episodes": 3, "mean": 3.0, "std": pytest.approx(7**0.5), "ci95": [low, high], "min": 1.0, "max": 6.0,
        "mean_length": 5.0, "time_limited": 1, "traversal_limited": 2, "forbidden": 2, "seed": 7, "gamma": 0.9,
        "returns": [1.0, 2.0, 6.0], "lengths": [3, 4, 8],
    }  # fmt: skip
    assert str(MIXED) == (
        f"return discounted by 0.9 3.00 (95 % interval of the mean {low:.2f} to {high:.2f}, standard deviation 2.65) "
        "over 3 episodes of 5.0 steps, 1 reached the time limit, 2 reached the traversal limit, 2 steps took an action "
        "that the environment's mask forbids"
    )
    page = MIXED._repr_html_()
    for words in ("1.00, 6.00", f"{low:.2f} to {high:.2f}", "3.00", "2.65", "5.0 steps"):
        assert words in page
    none = np.zeros(1, dtype=bool)
    assert str(Evaluation(np.array([4.0]), np.array([3]), none, none, 0)) == ("return 4.00 over 1 episode of 3.0 steps")


@pytest.mark.filterwarnings("error")
def test_the_spread_of_one_episode_warns_of_nothing():
    none = np.zeros(1, dtype=bool)
    assert np.isnan(Evaluation(np.array([4.0]), np.array([3]), none, none, 0).std)


def test_the_interval_holds_the_middle_95_percent():
    """The mean of 100 draws from as many zeros as ones: its quantiles are those of a binomial distribution."""
    none = np.zeros(100, dtype=bool)
    for seed in range(3):
        judged = Evaluation(np.repeat([0.0, 1.0], 50), np.ones(100), none, none, seed)
        assert judged.ci95 == pytest.approx((0.40, 0.60), abs=1e-12)


class Closing(Counter):
    """One that says whether it was closed."""

    closed = 0

    def close(self):
        Closing.closed += 1


def test_every_episode_counts_and_what_was_made_is_closed():
    base = describe(Counter())
    tree = Tree.leaf(0, base.features, base.actions)
    for count in (3, module.TIMED_EPISODES, module.TIMED_EPISODES + 3):
        Closing.closed = 0
        assert evaluate(tree, Closing, episodes=count, max_steps=5).returns.tolist() == [5.0] * count
        assert Closing.closed >= 1
    Closing.closed = 0
    assert evaluate(tree, Closing(), episodes=count, max_steps=5).lengths.tolist() == [5] * count
    assert Closing.closed == 0  # it is the user's


def test_a_function_acts_in_an_environment_that_python_steps():
    judged = evaluate(lambda x: np.zeros(len(x), dtype=int), Counter, episodes=2, max_steps=7)
    assert judged.returns.tolist() == [7.0, 7.0]
    assert judged.time_limited.all()


@pytest.mark.parametrize("left", [1, 90])
@pytest.mark.parametrize("share", [0.99, 1.0, 1.01])
@pytest.mark.parametrize("single", [False, True])
def test_workers_are_called_if_the_other_episodes_take_long(monkeypatch, left, share, single):
    """By the time the first took: one second too little calls none, and an environment that exists is run here."""
    took = share * module.MIN_SECONDS_FOR_WORKERS / left * module.TIMED_EPISODES
    clock, called = iter(took * k / module.TIMED_EPISODES for k in range(module.TIMED_EPISODES + 1)), []

    def make_runner(problem):
        called.append(problem.workers)
        raise CustardError("workers were called")

    monkeypatch.setattr(module, "make_runner", make_runner)
    monkeypatch.setattr(module, "TIMED_EPISODES_SECONDS", np.inf)
    monkeypatch.setattr(module.time, "perf_counter", lambda: next(clock))
    base = describe(Counter())
    tree, count = Tree.leaf(0, base.features, base.actions), module.TIMED_EPISODES + left
    if share > 1 and not single:
        with pytest.raises(CustardError, match="workers were called"):
            evaluate(tree, Counter, count, max_steps=2, workers=3)
        assert called == [3]
    else:
        assert evaluate(tree, Counter() if single else Counter, count, max_steps=2).lengths.tolist() == [2] * count
        assert called == []


def test_arguments_of_the_environment_add_to_those_the_tree_was_learned_with():
    tree = custard.learn("custard/PrereqWorld-v0", "mfec", env_kwargs={"m": 4}, seed=0).tree
    assert evaluate(tree, episodes=1).mean == -2.0
    with pytest.raises(CustardError, match="has_4"):  # other features than the tree's
        evaluate(tree, episodes=1, env_kwargs={"m": 5})


@pytest.mark.parametrize("splits", [1, "parameterised"])
def test_questions_about_the_first_feature_are_no_steps(splits):
    """The very first split is the first action that is no step of the environment."""
    env = custard.IBMDP(gym.make("CartPole-v1"), splits=splits, low=-1, high=1, max_queries=5)

    def asks_once(bounds, mask):
        choice = np.where(bounds[:, 4] - bounds[:, 0] == 1, env.rules.n_base, (bounds[:, 0] >= 0.5).astype(int))
        if splits == 1:
            return choice
        return {"choice": choice, "v": np.full((len(bounds), 1), 0.5), "base": np.zeros((len(bounds), 1))}

    judged = evaluate(asks_once, env, episodes=4, seed=3)
    tree = custard.extract(asks_once, env)
    assert tree.feature[0] == 0
    there = evaluate(tree, "CartPole-v1", episodes=4, seed=3)
    assert judged.returns.tolist() == there.returns.tolist()
    assert judged.lengths.tolist() == there.lengths.tolist()


class Clock:
    """Goes on by what an episode takes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 100.0
        monkeypatch.setattr(module.time, "monotonic", lambda: self.now)


def sizes(clock, seconds_each, episodes, *, first, seconds=math.inf, heard=None, **limits):
    """How many episodes each part has, of episodes that take so long."""
    listen = None if heard is None else lambda *told: heard.append(told)
    pace = module._Pace(episodes, seconds, listen)
    found, begun = [], 0
    for part in pace.parts(first, **limits):
        assert part.start == begun  # none is left out, none comes twice
        found.append(part.stop - part.start)
        clock.now += seconds_each * found[-1]
        begun = part.stop
    assert pace.done == begun
    return found


def test_parts_take_a_second_and_a_half_after_the_first(monkeypatch):
    """So that progress is told every now and then; parts grow tenfold at the most."""
    clock, heard = Clock(monkeypatch), []
    assert sizes(clock, 0.1, 100, first=20, heard=heard) == [20, 15, 15, 15, 15, 15, 5]
    assert heard == [(20, 100), (35, 100), (50, 100), (65, 100), (80, 100), (95, 100), (100, 100)]
    assert sizes(clock, 0.0, 1000, first=3, heard=heard) == [3, 30, 300, 667]
    assert sizes(clock, 0.001, 1000, first=300, heard=heard) == [300, 700]
    assert sizes(clock, 9.0, 5, first=2, heard=heard) == [2, 1, 1, 1]
    assert sizes(clock, 9.0, 9, first=2, heard=heard, least=3) == [3, 3, 3]
    assert sizes(clock, 9.0, 9, first=4, heard=heard, least=3) == [4, 3, 2]
    assert sizes(clock, 0.1, 100, first=4, heard=heard, end=7) == [4, 3]
    assert sizes(clock, 0.1, 5, first=4, heard=heard, end=7) == [4, 1]


def test_without_anybody_to_hear_and_without_a_limit_there_is_one_part(monkeypatch):
    clock = Clock(monkeypatch)
    assert sizes(clock, 9.0, 100, first=20) == [100]
    assert sizes(clock, 9.0, 100, first=20, end=30) == [30]
    assert sizes(clock, 9.0, 0, first=20) == []


def test_time_that_is_over_ends_it_after_ten_episodes(monkeypatch):
    clock = Clock(monkeypatch)
    assert sizes(clock, 1.0, 100, first=4, seconds=0.0) == [4, 1, 1, 1, 1, 1, 1]
    assert sizes(clock, 1.0, 100, first=4, seconds=12.5) == [4, *[1] * 9]
    assert sizes(clock, 1.0, 100, first=4, seconds=12.0) == [4, *[1] * 8]
    assert sizes(clock, 1.0, 8, first=4, seconds=0.0) == [4, 1, 1, 1, 1]
    assert sizes(clock, 1.0, 100, first=12, seconds=0.0) == [12]
    assert module.MIN_EVALUATED_EPISODES == 10
    assert module.SECONDS_BETWEEN_PROGRESS == 1.5


@pytest.mark.parametrize(("workers", "at_once"), [(3, 6), (1, 2), (0, 2), (None, 10)])
def test_workers_get_two_episodes_each_at_a_time(monkeypatch, workers, at_once):
    """And the same episodes are run, each once, when they are timed."""
    parts = []

    class Runner:
        def run(self, requests):
            parts.append(len(requests[0].seeds))
            return [module.play_episodes(env, CARTPOLE, requests[0])]

        def close(self):
            parts.append("closed")

    env = gym.make("CartPole-v1").env
    monkeypatch.setattr(module, "cores", lambda: 5)
    monkeypatch.setattr(module, "MIN_SECONDS_FOR_WORKERS", -1.0)
    monkeypatch.setattr(module, "SECONDS_BETWEEN_PROGRESS", 0.0)
    monkeypatch.setattr(module, "make_runner", lambda problem: Runner())
    make = lambda: gym.make("CartPole-v1").env  # noqa: E731
    found = evaluate(LEAN, make, 31, 4, max_steps=20, workers=workers, on_progress=lambda *told: None)
    rest = 31 - module.TIMED_EPISODES
    assert parts == [*[at_once] * (rest // at_once), *[rest % at_once] * (rest % at_once > 0), "closed"]
    alone = evaluate(LEAN, make, 31, 4, max_steps=20, workers=0)
    np.testing.assert_array_equal(found.returns, alone.returns)
