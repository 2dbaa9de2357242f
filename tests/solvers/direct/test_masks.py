"""Action masks: random actions respect them, constants and imitation prefer what is allowed, evaluation counts."""

import gymnasium as gym
import numpy as np

import custard
from custard.core.actions import Actions
from custard.core.features import Features
from custard.solvers.direct.imitate import Teacher, allowed_scores, fit_trees
from custard.solvers.direct.plain import with_allowed_leaves
from custard.task.budget import seconds_per_step
from custard.task.episodes import EpisodeRequest, Episodes, play_episodes
from custard.task.source import episode_seeds
from custard.tree.tree import Tree
from tests.task.test_workers import Masked, problem_of

FEATURES, ACTIONS = Features(("x",), [-1], [1]), Actions("discrete", ("a", "b", "c"))


class Valve(gym.Env):
    """Three actions; 2 is forbidden where x > 0, else 0 is. A forbidden action does what 1 does, which earns 1."""

    observation_space, action_space = gym.spaces.Box(-1, 1, (1,)), gym.spaces.Discrete(3)
    tried: list[int] = []

    def _info(self):
        return {"action_mask": np.array([self.x[0] > 0, True, self.x[0] <= 0], dtype=np.int8)}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.t = self.np_random.uniform(-1, 1, 1), 0
        return self.x.astype(np.float32), self._info()

    def step(self, action):
        self.tried.append(not self._info()["action_mask"][action])
        self.t += 1
        reward = float(action == 1 or not self._info()["action_mask"][action])
        self.x = self.np_random.uniform(-1, 1, 1)
        return self.x.astype(np.float32), reward, False, self.t >= 10, self._info()


def test_random_actions_are_allowed_ones():
    problem = problem_of(Valve)
    leaf = Tree.leaf(1, problem.base.features, problem.base.actions)
    Valve.tried.clear()
    episodes = play_episodes(problem.source.make(), problem.base, EpisodeRequest(leaf, episode_seeds(0, 20), 0.9))
    assert not episodes.forbidden.any()
    assert episodes.returns.mean() < 9  # random actions were taken
    problem.probe  # noqa: B018
    seconds_per_step(problem)
    assert len(Valve.tried) > 220
    assert not any(Valve.tried)


def test_masks_are_kept_with_states_and_joined():
    problem = problem_of(Valve)
    leaf = Tree.leaf(0, problem.base.features, problem.base.actions)
    request = EpisodeRequest(leaf, episode_seeds(0, 3), keep_states=True)
    met = play_episodes(problem.source.make(), problem.base, request)
    assert np.array_equal(met.masks, np.column_stack([met.states > 0, np.ones(30, bool), met.states <= 0]))
    assert met.forbidden.sum() == (met.states <= 0).sum()
    joined = Episodes.joined([met, Episodes(*[np.zeros(0)] * 5, np.zeros((0, 1)), np.ones((0, 0), bool))])
    assert np.array_equal(joined.masks, met.masks)


def test_leaves_get_actions_allowed_in_every_state():
    tree = Tree.stump(0, 0.0, 0, 2, FEATURES, ACTIONS)
    states = np.array([[-0.5], [-0.2], [0.3], [0.9]])
    masks = np.array([[1, 1, 0], [1, 1, 0], [1, 1, 0], [1, 1, 1]], dtype=bool)
    assert with_allowed_leaves(tree, states, masks).value.tolist() == [0, 0, 0]  # the other leaf's action
    masks[2:, 0] = False
    assert with_allowed_leaves(tree, states, masks).value.tolist()[1:] == [0, 1]
    masks[2] = False  # nothing is allowed there: the leaf stays
    assert with_allowed_leaves(tree, states, masks) is tree
    assert with_allowed_leaves(tree, states, np.ones((4, 0), bool)) is tree


def test_the_best_allowed_action_is_imitated():
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 1, size=(300, 1))
    scores = lambda x: np.tile([3.0, 1.0, 2.0], (len(x), 1))  # noqa: E731
    teacher = Teacher(lambda x: np.zeros(len(x), dtype=int), scores, lambda count: (x, x))
    base = type("Base", (), {"features": FEATURES, "actions": ACTIONS})
    masks = np.column_stack([x > 0, np.ones(300, bool), x <= 0.5])
    for tree in fit_trees(teacher, x, base, 4, 3, masks):
        assert tree.predict(x).tolist() == np.where(x[:, 0] > 0, 0, 2).tolist()
    single = np.array([[False, False, True]])
    assert allowed_scores(scores(single), single).argmax() == 2
    assert np.array_equal(allowed_scores(scores(single), ~np.ones((1, 3), bool)), scores(single))


def test_learned_trees_prefer_allowed_actions():
    run = custard.learn(Valve, "direct", budget=5000, workers=0, tests="axis")
    result = custard.evaluate(run.tree, Valve, 50)
    assert (result.mean, result.forbidden) == (10.0, 0)
    run = custard.learn(Masked, "direct", budget=1000, workers=0, expert="none", max_leaves=1)
    assert run.tree.value.tolist() == [0], "1 is forbidden everywhere"
    forbidden = custard.evaluate(Tree.leaf(1, run.tree.features, run.tree.actions), Masked, 5)
    assert forbidden.forbidden == forbidden.lengths.sum()
    assert "steps took an action that the environment's mask forbids" in str(forbidden)
