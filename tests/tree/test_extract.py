from types import SimpleNamespace

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given, settings

import custard
from custard import IBMDP, CustardError, VectorIBMDP, extract, simplify
from custard.tree.extract import MAX_NODES, _ask, must_act
from custard.tree.verify import certify
from tests.ibmdp.test_env import Random, cartpole
from tests.strategies import random_features, seeds


def hash_policy(seed, rules, greed=0.4):
    """A deterministic policy over bounds that is as good as random: every node has its own arbitrary answer."""

    def one(bounds, mask):
        rng = np.random.default_rng([seed, *np.frombuffer(bounds.tobytes() + mask.tobytes(), dtype=np.uint8).tolist()])
        afforded = np.flatnonzero(mask)
        splits = afforded[afforded >= rules.n_base]
        number = int(rng.choice(splits)) if len(splits) and rng.random() > greed else int(rng.integers(rules.n_base))
        return (
            number,
            rng.uniform(),
            rng.uniform(rules.actions.low, rules.actions.high) if not rules.actions.discrete else 0,
        )

    def policy(bounds, mask):
        answers = [one(b, m) for b, m in zip(bounds, mask, strict=True)]
        numbers = np.array([answer[0] for answer in answers])
        if not rules.parameterised:
            return numbers
        parts = {"choice": numbers, "v": np.array([[answer[1]] for answer in answers], dtype=np.float32)}
        if not rules.actions.discrete:
            parts["base"] = np.array([answer[2] for answer in answers])
        return parts

    return policy


@settings(max_examples=250, deadline=None)
@given(seeds)
def test_the_tree_decides_as_the_traversal_does(seed):
    """On random MDPs with boundary values, float32 and float64, every decision of the tree is the IBMDP's."""
    rng = np.random.default_rng(seed)
    features = random_features(rng, int(rng.integers(1, 4)))
    dtype = np.float32 if seed % 2 else np.float64
    env = IBMDP(
        Random(features, seed, dtype), splits="parameterised" if seed % 3 == 0 else int(rng.integers(1, 5)),
        low=features.low, high=features.high, max_depth=int(rng.integers(0, 6)), mask_useless=bool(seed % 5),
    )  # fmt: skip
    policy = hash_policy(seed, env.rules)
    tree = extract(policy, env)
    small = simplify(tree)
    assert tree.depth <= env.rules.max_depth
    n = features.n
    observation, info = env.reset(seed=seed)
    for _ in range(120):
        action = policy(observation[None, -2 * n :], info["action_mask"][None])
        number = action["choice"][0] if env.rules.parameterised else action[0]
        x = env.x.astype(dtype)
        if number < env.rules.n_base:
            assert tree.act(x) == number
            assert tree.predict(x[None])[0] == number
            assert small.act(x) == number
        one = {key: value[0] for key, value in action.items()} if env.rules.parameterised else number
        observation, _, terminated, truncated, info = env.step(one)
        if terminated or truncated:
            observation, info = env.reset()


@settings(max_examples=30, deadline=None)
@given(seeds)
def test_leaves_hold_action_vectors(seed):
    env = IBMDP(gym.make("Pendulum-v1"), splits="parameterised", max_depth=3)
    policy = hash_policy(seed, env.rules, greed=0.2)
    tree = extract(policy, env)
    observation, info = env.reset(seed=seed % 1000)
    for _ in range(40):
        action = policy(observation[None, -6:], info["action_mask"][None])
        if action["choice"][0] == 0:
            np.testing.assert_array_equal(tree.act(env.x), action["base"][0])
        observation, *_, info = env.step({key: value[0] for key, value in action.items()})


def test_the_vector_environment_gives_the_same_tree():
    env = cartpole(max_depth=4)
    venv = VectorIBMDP(
        gym.make_vec("custard/CartPole-v0", num_envs=2),
        splits=3,
        low=[-2, -2, -0.14, -1.4],
        high=[2, 2, 0.14, 1.4],
        max_depth=4,
    )
    policy = hash_policy(0, env.rules)
    assert extract(policy, env) == extract(policy, venv) == extract(policy, env.rules)


def test_policies_see_only_bounds_and_masks():
    env = cartpole(max_depth=2)
    seen = []

    def policy(bounds, mask):
        seen.append((bounds.shape, bounds.dtype, mask.shape))
        bounds[:] = 7  # what a policy does with its copy does not matter
        return np.where(mask[:, 2:].any(axis=1), 2, 0)

    tree = extract(policy, env)
    assert seen[0] == ((1, 8), np.float32, (1, 14))
    assert tree.depth == 2


def test_a_policy_that_never_stops_is_cut_and_reported():
    env = cartpole(splits=1, max_queries=5)

    def asks_for_ever(bounds, mask):  # obeys the mask
        return np.where(mask[:, 2], 2, np.where(mask[:, 3], 3, 1))

    with pytest.warns(UserWarning, match="cut"):
        tree = extract(asks_for_ever, env)
    assert tree.depth == 5
    assert tree.origin["cut"] == 2**5


@pytest.mark.parametrize("max_nodes", [1000, None])
def test_a_tree_that_would_fill_the_memory_is_cut(max_nodes):
    env = cartpole(splits=1)
    limit = {} if max_nodes is None else {"max_nodes": max_nodes}

    def halves(bounds, mask):  # obeys the mask, and would ask until no float is left
        return np.where(mask[:, 2], 2, 1)

    with pytest.warns(UserWarning, match="cut"):
        tree = extract(halves, env, **limit)
    assert tree.n_nodes <= (max_nodes or MAX_NODES)
    assert tree.origin["cut"] == tree.n_leaves
    assert certify(tree, halves, env, **limit)
    with pytest.raises(CustardError, match="asks for ever"):
        extract(lambda bounds, mask: np.full(len(bounds), 2), env, **limit)


def test_a_policy_that_ignores_the_mask_is_an_error_unless_told():
    env = cartpole(max_depth=1)

    def stubborn(bounds, mask):
        return np.full(len(bounds), 2)

    with pytest.raises(CustardError, match="asks for ever"):
        extract(stubborn, env)
    with pytest.warns(UserWarning, match="2 node"):
        tree = extract(stubborn, env, fallback=1)
    assert tree.value[tree.leaves()].tolist() == [1, 1]

    def shy(bounds, mask):  # asks although it may not, but acts when only base actions are offered
        return np.where(mask[:, 2:].any(axis=1), 2, np.where(bounds[:, 0] > 0, 1, 2))

    with pytest.raises(CustardError, match="asks for ever"):
        extract(shy, env)


@pytest.mark.parametrize("answer", [None, "a", [99], [0, 1], [-1]])
def test_bad_answers(answer):
    with pytest.raises(CustardError):
        extract(lambda bounds, mask: answer, cartpole())


def test_environments_with_actions_that_start_elsewhere():
    class Shifted(gym.Env):
        observation_space = gym.spaces.Box(0, 1, (1,))
        action_space = gym.spaces.Discrete(2, start=5)

    env = IBMDP(Shifted(), splits=1)
    tree = extract(lambda bounds, mask: np.where(bounds[:, 1] - bounds[:, 0] == 1, 2, bounds[:, 0] > 0), env)
    assert tree.act([0.2]) == 5
    assert tree.act([0.8]) == 6
    assert custard.Tree.from_json(tree.to_json()) == tree


def test_actions_that_are_no_whole_numbers_are_refused():
    env = IBMDP(gym.make("CartPole-v1"), splits=1, low=-2, high=2, max_depth=1)
    with pytest.raises(CustardError, match="must be whole"):
        extract(lambda bounds, mask: np.full(len(bounds), 0.7), env)


def test_answers_are_checked_one_by_one():
    env = cartpole(max_depth=1)
    n_actions = env.rules.n_actions
    for number in (-1, n_actions):
        with pytest.raises(CustardError, match=f"outside 0…{n_actions - 1}"):
            extract(lambda bounds, mask, number=number: np.full(len(bounds), number), env)
    assert extract(lambda bounds, mask: np.where(mask[:, -1], n_actions - 1, 0), env).n_leaves == 2
    rules = SimpleNamespace(parameterised=True, n_actions=5, actions=env.rules.actions)
    ask = lambda *v: _ask(lambda *_: {"choice": [0, 4], "v": v}, rules, np.zeros((2, 8)), np.ones((2, 5)))  # noqa: E731
    assert ask(0.0, 1.0)[1].tolist() == [0.0, 1.0]
    for v in ((-0.1, 0.5), (0.5, 1.1), (np.nan, 0.5)):
        with pytest.raises(CustardError, match=r"v outside \[0, 1\]"):
            ask(*v)


def test_a_level_that_may_grow_too_large_must_act():
    rules = SimpleNamespace(max_queries=9)
    assert not must_act(rules, 8, 5, 3, 11)
    assert must_act(rules, 8, 5, 3, 10)
    assert must_act(rules, 9, 5, 3, 11)


def test_every_cut_node_is_counted_once():
    env = cartpole()
    with pytest.warns(UserWarning, match=r"at 2 node\(s\)"):
        tree = extract(lambda bounds, mask: np.full(len(bounds), env.rules.n_base), env, fallback=0, max_nodes=3)
    assert (tree.n_nodes, tree.origin["cut"]) == (3, 2)


def test_an_endless_policy_of_many_features_is_one_line():
    env = IBMDP(gym.make("Acrobot-v1"), splits=1, max_depth=1)
    with pytest.raises(CustardError, match=r"asks for ever: at depth 1 \(.*, …\)"):
        extract(lambda bounds, mask: np.full(len(bounds), env.rules.n_base), env)


def test_one_wrong_answer_among_several_is_refused():
    """Others in the batch may be right."""
    env = cartpole(splits=1, max_depth=2)
    first = env.rules.n_base

    def second_level(answers):
        return lambda bounds, mask: np.array([first]) if len(bounds) == 1 else np.array(answers)

    for wrong, message in (([0, -1], "outside 0…"), ([0, 99], "outside 0…"), ([0.0, 0.5], "must be whole")):
        with pytest.raises(CustardError, match=message):
            extract(second_level(wrong), env)


def test_leaves_have_no_threshold_and_a_fallback_is_the_action():
    env = cartpole(splits=1, max_depth=1)
    first = env.rules.n_base

    def never_acts(bounds, mask):
        return np.full(len(bounds), first)

    with pytest.warns(UserWarning, match="asked for ever"):
        tree = extract(never_acts, env, fallback=1)
    assert tree.threshold[tree.leaves()].tolist() == [0.0] * tree.n_leaves
    assert set(tree.value[tree.leaves()].tolist()) == {1}


def test_a_policy_is_asked_again_with_base_actions_only():
    env, masks = cartpole(splits=1, max_depth=1), []
    first = env.rules.n_base

    def obeys_the_second_time(bounds, mask):
        masks.append(mask.copy())
        return np.where(mask[:, first:].any(axis=1) | (len(masks) == 2), first, 1)

    with pytest.warns(UserWarning, match="asked for ever"):
        tree = extract(obeys_the_second_time, env)
    assert tree.depth == 1
    assert len(masks) == 3
    assert not masks[2][:, first:].any()
    assert masks[2][:, :first].all()
