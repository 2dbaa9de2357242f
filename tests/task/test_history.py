"""Past observations and actions as features: what they hold, who knows of them, and that every method can use them."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest

import custard
from benchmarks.hidden_maze import CheeseMaze, best_without_memory
from custard.baselines import cutree
from custard.core.history import Memory, history_features
from custard.core.metadata import feature_units
from custard.core.spaces import describe
from custard.planning.evaluate import tree_value
from custard.planning.model import model_of
from custard.planning.solve import optimal_value
from custard.planning.yardstick import best_return, exact_return
from custard.task.episodes import EpisodeRequest
from custard.task.history import History, remembered, with_history
from custard.task.problem import Problem
from custard.task.source import source
from custard.task.workers import make_runner

SMALL = {  # settings under which a method answers at once
    "tpi": {"budget": 1500}, "pyeatt": {"budget": 1500}, "random": {"budget": 1500}, "viper-dqn": {"budget": 1500},
    "plan": {"max_depth": 1},
}  # fmt: skip
LONG_TO_COMPILE = {name: {"budget": 1200} for name in ("dqn", "ppo", "mfec", "cqi")}


class Counter(gym.Env):
    """Shows how many steps have passed, twice; the action is real."""

    observation_space = gym.spaces.Box(0.0, 100.0, (2,), dtype=np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), dtype=np.float32)
    feature_units = ("s", "ms")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t = 0
        return np.array([0.0, 10.0], np.float32), {}

    def step(self, action):
        self.t += 1
        return np.array([self.t, self.t + 10], np.float32), float(action[0]), False, self.t == 5, {}


def doubled(observation):
    return [2 * observation[0]]


def test_what_the_first_steps_hold():
    env = History(Counter(), 2)
    first = env.reset(seed=0)[0]
    assert first.tolist() == [0, 10, 0, 10, 0, 0, 10, 0]
    taken = float(np.float32(0.1))  # as the environment gets it
    second = env.step(np.array([0.1]))[0]
    assert second.tolist() == [1, 11, 0, 10, taken, 0, 10, 0]
    assert env.step(np.array([-1.0]))[0].tolist() == [2, 12, 1, 11, -1, 0, 10, taken]
    assert first.tolist() == [0, 10, 0, 10, 0, 0, 10, 0]  # what was handed out stays as it was
    assert env.reset(seed=1)[0].tolist() == first.tolist()


def test_names_kinds_bounds_and_units():
    env = History(CheeseMaze(), 2)
    features = describe(env).features
    assert features.names[4:9] == ("wall_north[-1]", "wall_south[-1]", "wall_east[-1]", "wall_west[-1]", "action[-1]")
    assert features.kinds[:9] == ("binary",) * 8 + ("integer",)
    assert (features.low[8], features.high[8]) == (0.0, 3.0)
    assert feature_units(History(Counter(), 1), 5) == ("s", "ms", "s", "ms", "")
    assert describe(History(gym.make("FrozenLake-v1"), 1)).features.names == (
        "row", "column", "row[-1]", "column[-1]", "action[-1]",
    )  # fmt: skip


def test_components_and_names_that_are_taken():
    car = custard.Features(("action", "x"), [0, 0], [1, 1])
    vector = custard.Actions("box", ("gas", "brake"), low=[-1, -1], high=[1, 1])
    assert history_features(car, vector, 1).names[2:] == (
        "action[-1]", "x[-1]", "taken_action_gas[-1]", "taken_action_brake[-1]",
    )  # fmt: skip
    memory = Memory(vector, 1)
    memory.begin(np.array([1.0, 2.0]))
    assert memory.push([0.5, -0.5], np.array([3.0, 4.0])).tolist() == [3, 4, 1, 2, 0.5, -0.5]


@pytest.mark.parametrize(("steps", "says"), [
    (-1, "at least 0"), (10**9, "at most 100"), (1.5, "whole number"), ("two", "whole number"), (True, "whole number"),
])  # fmt: skip
def test_bad_histories_are_one_line(steps, says):
    for call in (
        lambda: custard.learn(CheeseMaze, "cutree", history=steps),
        lambda: custard.evaluate(lambda x: np.zeros(len(x), int), CheeseMaze, history=steps),
        lambda: History(CheeseMaze(), steps),
    ):
        with pytest.raises(custard.CustardError, match=says) as caught:
            call()
        assert "\n" not in str(caught.value)


def test_what_cannot_have_a_history_says_so():
    with pytest.raises(custard.CustardError, match="not a vector one"):
        custard.learn(gym.make_vec("CartPole-v1", 2), "tpi", history=1)
    with pytest.raises(custard.CustardError, match="shows 1 past steps already"):
        custard.learn(History(CheeseMaze(), 1), "cutree", history=1)
    image = custard.Features(tuple(map(str, range(27648))), np.zeros(27648), np.ones(27648))
    with pytest.raises(custard.CustardError, match="features of 27,648"):
        history_features(image, custard.Actions("discrete", ("a", "b")), 90)


@pytest.mark.parametrize(
    ("method", "settings"),
    [*SMALL.items(), *(pytest.param(*item, marks=pytest.mark.slow) for item in LONG_TO_COMPILE.items())],
)
def test_methods_learn_with_a_history(method, settings):
    run = custard.learn("CheeseMaze-v0", method, history=1, seed=0, workers=0, **settings)
    assert run.tree.features.names[:9] == describe(History(CheeseMaze(), 1)).features.names
    assert run.tree.origin["history"] == run.config["history"] == 1
    assert custard.evaluate(run.tree, episodes=3).episodes == 3  # knows the environment and the history


def test_a_tree_with_memory_solves_what_none_without_does(tmp_path):
    run = custard.learn("CheeseMaze-v0", "cutree", history=1, seed=0, budget=20_000, out=tmp_path / "run")
    assert not custard.evaluate(run.tree, episodes=200).time_limited.any()
    again = custard.learn("CheeseMaze-v0", "cutree", history=1, seed=0, budget=20_000)
    assert again.tree.to_json()["nodes"] == run.tree.to_json()["nodes"]
    with pytest.raises(custard.CustardError, match=r"history=1, not 2"):
        custard.learn("CheeseMaze-v0", "cutree", history=2, seed=0, budget=20_000, out=tmp_path / "run", resume=True)
    with pytest.raises(custard.CustardError, match=r"history=1, not None"):
        custard.learn("CheeseMaze-v0", "cutree", seed=0, budget=20_000, out=tmp_path / "run", resume=True)


def test_workers_remake_the_history_and_the_features():
    """Functions, their names and expressions over past steps: the same episodes with and without a worker process."""
    where = with_history(source("MountainCar-v0"), 1, doubled, ["twice"])
    encoder = ["change = twice - twice[-1]"]
    base = describe(where.make(), features=encoder)
    assert base.features.names == ("twice", "twice[-1]", "action[-1]", "change")
    tree = custard.Tree.stump(3, 0.0, 0, 2, base.features, base.actions)
    request = EpisodeRequest(tree, np.arange(6), keep_states=True, max_steps=50)
    results = []
    for workers in (0, 1):
        runner = make_runner(Problem(where, base, encoder=encoder, workers=workers))
        assert (type(runner).__name__ == "WorkerPool") == bool(workers)
        results.append(runner.run([request])[0])
        runner.close()
    np.testing.assert_array_equal(results[0].states, results[1].states)
    np.testing.assert_array_equal(results[0].returns, results[1].returns)
    change = results[0].states
    np.testing.assert_allclose(change[1:50, 1], change[:49, 0])  # twice[-1] is twice, a step later
    np.testing.assert_allclose(change[:, 3], change[:, 0] - change[:, 1])


def test_own_features_and_bounds_hold_for_past_steps_too():
    run = custard.learn(
        "MountainCar-v0", "cutree", history=2, features=doubled, feature_names=["twice"], low=-3, high={"twice": 2.0},
        budget=1000,
    )  # fmt: skip
    features = run.tree.features
    assert features.names == ("twice", "twice[-1]", "action[-1]", "twice[-2]", "action[-2]")
    assert features.low.tolist() == [-3, -3, 0, -3, 0]
    assert features.high.tolist() == [2, 2, 2, 2, 2]
    assert custard.evaluate(run.tree, episodes=2).episodes == 2


def test_functions_can_be_evaluated_with_a_history():
    def persist(x):
        return x[:, 8].astype(int)  # action[-1]: for ever north

    assert custard.evaluate(persist, CheeseMaze, episodes=5, history=1, max_steps=7).lengths.max() == 7


def test_a_wrong_history_in_a_file_is_one_line():
    base = describe(History(CheeseMaze(), 1))
    tree = custard.Tree.leaf(0, base.features, base.actions)
    assert custard.evaluate(tree.with_origin(history=1), CheeseMaze, episodes=2, max_steps=5).episodes == 2
    with pytest.raises(custard.CustardError, match="9 features, past steps included"):
        tree.with_origin(history=1).act(np.zeros(4))
    for wrong, says in ((-3, "whole number"), ("1", "whole number"), (2, "the tree asks about")):
        with pytest.raises(custard.CustardError, match=says):
            custard.evaluate(tree.with_origin(history=wrong), CheeseMaze, episodes=2)


def test_the_exact_model_remembers_too():
    """Planning proves what is best with and without memory; a tree's exact value is what its episodes show."""
    mean, starts = best_without_memory()
    assert (round(mean, 9), starts) == (0.14, 4)  # of ten: no tree without memory finds the cheese from all
    without = custard.learn("CheeseMaze-v0", "plan", max_depth=4)
    assert without.value == pytest.approx(mean)
    tree = custard.learn("CheeseMaze-v0", "cutree", history=1, seed=0, budget=20_000).tree
    where = remembered(tree, source("CheeseMaze-v0"))[0]
    mdp = model_of(where, limit=True)
    assert mdp.features.names == tree.features.names
    exact = tree_value(tree, mdp)
    assert exact == exact_return(where, tree)
    assert mean + 4 < exact <= optimal_value(mdp) <= best_return(where)
    judged = custard.evaluate(tree, episodes=2000)
    assert judged.ci95[0] <= exact <= judged.ci95[1]
    assert not judged.time_limited.any()


def test_a_run_that_is_resumed_goes_on_as_if_it_had_not_stopped():
    def snapshots(state=None):
        where = with_history(source("CheeseMaze-v0"), 2)
        problem = Problem(where, describe(where.make()), 3, workers=0)
        return cutree.solve(problem, cutree.Settings(budget=8000), state)

    whole = list(snapshots())
    assert len(whole) > 2
    rest = list(snapshots(whole[1].state()))
    shown = [(s.steps, s.tree, repr(s.value)) for s in rest]  # a value may be not known: NaN
    assert shown == [(s.steps, s.tree, repr(s.value)) for s in whole[2:]]


def test_workers_give_the_same_tree():
    trees = [
        custard.learn("CheeseMaze-v0", "tpi", history=1, seed=0, budget=3000, workers=workers).tree
        for workers in (0, 1)
    ]
    assert trees[0] == trees[1]


def test_several_seeds_at_once_know_the_history():
    runs = custard.learn("CheeseMaze-v0", "cutree", history=1, seeds=2, workers=0, budget=2000)
    assert [run.tree.origin["history"] for run in runs] == [1, 1]


def test_a_function_whose_tree_is_judged_where_python_steps_is_found_again():
    """Without a history: features= of a tree's own function, in an environment that has no compiled form."""
    run = custard.learn("CheeseMaze-v0", "cutree", features=doubled, feature_names=["twice"], budget=500)
    assert custard.evaluate(run.tree, episodes=3).episodes == 3
