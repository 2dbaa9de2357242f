"""What people bring from other libraries works: notebooks, scikit-learn, Stable-Baselines3, methods on the tree."""

import dataclasses

import gymnasium as gym
import numpy as np
import pytest

import custard
from custard import Actions, CustardError, Features, Tree
from custard.tree.svg import to_svg


@pytest.fixture
def tree() -> Tree:
    base = custard.describe(gym.make("CartPole-v1"))
    return Tree.stump(2, 0.0, 0, 1, base.features, base.actions).with_origin(env="CartPole-v1")


def test_predict_takes_one_observation_or_many(tree):
    one = np.array([0, 0, 0.1, 0], dtype=np.float32)
    assert tree.predict(one) == tree.predict(one.tolist()) == tree.act(one) == 1
    assert tree.predict([one, -one]).tolist() == [1, 0]
    vector = Tree.stump(0, 0.0, [1.0], [2.0], Features(("x",), [-1], [1]), Actions("box", ("u",), low=[0], high=[3]))
    assert vector.predict([0.5]).tolist() == [2.0]
    assert vector.predict([[0.5], [-0.5]]).tolist() == [[2.0], [1.0]]
    with pytest.raises(CustardError, match="4 features"):
        tree.predict([1.0, 2.0])


@pytest.mark.parametrize(
    ("name", "said", "call"),
    [
        ("x.png", "tree.plot('x.png')", lambda tree: tree.plot("x.png")),
        ("x.svg", "tree.plot('x.svg')", lambda tree: tree.plot("x.svg")),
        ("x.c", "tree.export('c', 'x.c')", lambda tree: tree.export("c", "x.c")),
        ("x.py", "tree.export('python', 'x.py')", lambda tree: tree.export("python", "x.py")),
    ],
    ids=["png", "svg", "c", "python"],
)
def test_save_refuses_names_of_other_formats_with_the_right_call(tree, name, said, call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CustardError) as error:
        tree.save(name)
    assert said in str(error.value)
    call(tree)
    assert (tmp_path / name).stat().st_size > 0


def test_methods_on_the_tree_load_their_modules(tree):
    assert tree.explain([0, 0, 0.1, 0]).rule == "pole_angle > 0 → push_right"
    assert tree.counterfactual([0, 0, 0.1, 0]).action == 0
    assert Tree.leaf(0, tree.features, tree.actions).counterfactual([0, 0, 0, 0]) is None
    assert "custard_act" in tree.export("c")
    assert tree.to_sklearn().predict(np.float32([[0, 0, 0.1, 0], [0, 0, -0.1, 0]])).tolist() == [1, 0]
    assert tree.plot()._repr_svg_().count("<svg") == 1
    pytest.importorskip("z3", reason="z3-solver is not installed")
    assert tree.verify("pole_angle > 0 -> push_right").holds


def test_an_edited_tree_says_so(tree):
    learned = tree.with_origin(fingerprint=custard.tree.store.fingerprint(tree))
    assert "edited" not in learned.origin
    edited = dataclasses.replace(learned, threshold=[0.1, 0, 0])
    assert edited.origin["edited"] is True
    assert edited.origin["env"] == "CartPole-v1"
    assert "edited since it was learned" in edited._repr_html_()
    assert Tree.from_json(edited.to_json()).origin["edited"] is True
    assert "edited" not in dataclasses.replace(edited, threshold=[0.0, 0, 0]).origin


def test_pictures_for_notebooks(tree):
    names = Features(("<b>", "y"), [0, 0], [1, 1])
    picture = to_svg(Tree.stump(0, 0.5, 0, 1, names, Actions("discrete", ("a & b", "c"))))
    assert "&lt;b&gt; ≤ 0.5?" in picture
    assert "a &amp; b" in picture
    assert "<b>" not in picture
    assert "CartPole-v1" in tree._repr_html_()
    wide = _comb(30)
    assert to_svg(wide).count("<rect") == wide.n_nodes
    assert "<pre" in _comb(100)._repr_html_()


def _comb(leaves: int) -> Tree:
    """A tree that asks whether x is at most 1, 2, 3, … in turn."""
    inner = leaves - 1
    order = [(k, 2 * k + 1, 2 * k + 2) for k in range(inner)]
    n = 2 * inner + 1
    feature, threshold = np.full(n, -1), np.zeros(n)
    left, right = np.full(n, -1), np.full(n, -1)
    for k, a, b in order:
        at = 2 * k
        feature[at], threshold[at], left[at], right[at] = 0, k + 1, a, b
    return Tree(
        feature, threshold, left, right, np.zeros(n, int), Features(("x",), [0], [leaves]),
        Actions("discrete", ("a", "b")),
    )  # fmt: skip


def test_stable_baselines_shape_of_predict(tree):
    policy = tree.as_sb3()
    x = np.array([[0, 0, 0.1, 0], [0, 0, -0.1, 0]], dtype=np.float32)
    actions, state = policy.predict(x, state=None, episode_start=np.ones(2, bool), deterministic=True)
    assert (actions.tolist(), state) == ([1, 0], None)
    assert policy.predict(x[0])[0] == 1
    assert policy.predict(x[:1])[0].tolist() == [1]
    with pytest.raises(CustardError, match=r"tree.as_sb3\(env\)"):
        policy.predict(np.zeros((2, 3)))
    env = gym.make("Pendulum-v1")
    base = custard.describe(env)
    pendulum = Tree.stump(2, 0.0, [1.0], [-1.0], base.features, base.actions).as_sb3(env)
    actions, _ = pendulum.predict(np.zeros((3, 3), dtype=np.float32))
    assert (actions.shape, actions.dtype) == ((3, 1), np.float32)
    assert pendulum.predict(np.zeros(3, dtype=np.float32))[0].tolist() == [1.0]


def test_stable_baselines_evaluates_a_tree(tree):
    evaluation = pytest.importorskip("stable_baselines3.common.evaluation", reason="stable-baselines3 is missing")
    monitor = pytest.importorskip("stable_baselines3.common.monitor")
    env = monitor.Monitor(gym.make("CartPole-v1"))
    returns, _ = evaluation.evaluate_policy(tree.as_sb3(), env, n_eval_episodes=3, return_episode_rewards=True)
    assert len(returns) == 3
    assert all(10 <= value <= 500 for value in returns)
