"""Exports of trees with a history: given present observations only, they decide as the tree with its past steps."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import custard
from benchmarks.hidden_maze import CheeseMaze
from custard import Actions, CustardError, Features, Tree
from custard.core.history import Memory, history_features
from custard.core.spaces import describe
from custard.task.history import History
from custard.tree.export import export
from custard.tree.memory import memory_of
from tests.tree.test_export import BOX, MULTI, random_tree, run

FIVE = Actions("discrete", ("a", "b", "c"), start=5)
EPISODES, STEPS = 3, 12


def remembering_tree(actions: Actions, n: int, steps: int, depth: int = 6, seed: int = 0) -> Tree:
    """A random tree over n features and their past."""
    features = history_features(Features(tuple("abcd"[:n]), np.full(n, -2.0), np.full(n, 2.0)), actions, steps)
    tree = random_tree(depth, features.n, actions, seed, features.names)
    fields = (tree.feature, tree.threshold, tree.children_left, tree.children_right, tree.value)
    return Tree(*fields, features=features, actions=actions).with_origin(history=steps)


def with_sum(tree: Tree) -> Tree:
    """The same with a derived feature, which the root asks about."""
    n = tree.features.n
    features = tree.features.with_sums([{0: 1.0, n - 1: -0.3}], ["change"])
    feature = np.array(tree.feature)
    feature[0] = n
    fields = (feature, tree.threshold, tree.children_left, tree.children_right, tree.value)
    return Tree(*fields, features=features, actions=tree.actions, origin=tree.origin)


CASES = {
    "discrete 1": remembering_tree(FIVE, 2, 1),
    "discrete 3": remembering_tree(FIVE, 3, 3, seed=1),
    "one leaf": Tree.leaf(5, history_features(Features(("a",), [0], [1]), FIVE, 2), FIVE).with_origin(history=2),
    "box 2": remembering_tree(BOX, 1, 2, seed=2),
    "multi 2": remembering_tree(MULTI, 2, 2, seed=3),
    "sum": with_sum(remembering_tree(FIVE, 2, 2, seed=4)),
}
each_case = pytest.mark.parametrize("tree", CASES.values(), ids=list(CASES))


def expected(tree: Tree, x: np.ndarray) -> np.ndarray:
    """The tree's decisions in episodes [E, T, n] that do not depend on its actions, [E, T, k]."""
    rows = []
    for episode in x.astype(np.float64):
        memory = Memory(tree.actions, memory_of(tree).steps)
        state = memory.begin(episode[0])
        for t in range(len(episode)):
            rows.append(np.reshape(tree.act(state), -1))
            if t + 1 < len(episode):
                state = memory.push(rows[-1], episode[t + 1])
    return np.array(rows).reshape(*x.shape[:2], -1)


def observations(tree: Tree, dtype: type) -> np.ndarray:
    return np.random.default_rng(0).standard_normal((EPISODES, STEPS, memory_of(tree).n)).astype(dtype)


@each_case
def test_python(tree: Tree) -> None:
    names = run(export(tree, "python"))
    x = observations(tree, np.float32)
    answers = []
    for episode in x:
        names["reset"]()
        answers.append([np.reshape(names["act"](row), -1) for row in episode])
    np.testing.assert_array_equal(np.array(answers), expected(tree, x))
    layout = memory_of(tree)
    assert names["FEATURES"] == tree.features.names[: layout.n]
    assert len(names["PAST"]) == layout.steps * layout.step_size


def test_an_action_that_was_not_the_trees_own() -> None:
    features = history_features(Features(("a",), [0], [1]), FIVE, 1)
    tree = Tree.stump(2, 5.5, 6, 7, features, FIVE).with_origin(history=1)  # action[-1] <= 5.5: 6, else 7
    names = run(export(tree, "python"))
    assert [names["act"]([0.0]), names["act"]([0.0])] == [6, 7]
    names["took"](5)
    assert names["act"]([0.0]) == 6
    one, other = names["Memory"](), names["Memory"]()
    assert [one.act([0.0]), one.act([0.0]), other.act([0.0])] == [6, 7, 6]


@each_case
def test_c(tree: Tree, tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    flags = ["-Wall", "-Wextra", "-Werror", "-std=c99", "-pedantic", "-O2", "-shared", "-fPIC"]
    out_type, dtype = (ctypes.c_double, np.float64) if tree.actions.kind == "box" else (ctypes.c_longlong, np.int64)
    for layout in ("nested", "table"):
        (tmp_path / "tree.c").write_text(export(tree, "c", layout=layout))
        library_file = tmp_path / f"{layout}.so"
        subprocess.run(["gcc", *flags, "-o", library_file, tmp_path / "tree.c", "-lm"], check=True)
        library = ctypes.CDLL(str(library_file))
        for name, kind in (("custard_act", np.float64), ("custard_act_f", np.float32)):
            x, act = observations(tree, kind), getattr(library, name)
            answers = []
            for episode in x:
                library.custard_reset()
                for row in episode:
                    if tree.actions.discrete:
                        answers.append([act(row.ctypes.data_as(ctypes.c_void_p))])
                    else:
                        out = (out_type * tree.actions.size)()
                        act(row.ctypes.data_as(ctypes.c_void_p), out)
                        answers.append(list(out))
            np.testing.assert_array_equal(np.array(answers, dtype).reshape(EPISODES, STEPS, -1), expected(tree, x))


def test_rust(tmp_path: Path) -> None:
    """All cases in one crate: starting the compiler takes longest."""
    if shutil.which("rustc") is None:
        pytest.skip("rustc is not installed")
    modules, checks = [], []
    for k, tree in enumerate(CASES.values()):
        x = observations(tree, np.float64)
        answers = expected(tree, x)
        literal = repr if tree.actions.kind == "box" else lambda v: str(int(v))
        modules.append(f"#[allow(dead_code)]\nmod m{k} {{\n{export(tree, 'rust')}}}\n")
        said = "[action]" if tree.actions.discrete else "action"
        lines = ["    let mut memory = " + f"m{k}::Memory::new();"]
        for episode, decided in zip(x.tolist(), answers.tolist(), strict=True):
            lines.append("    memory.reset();")
            for row, want in zip(episode, decided, strict=True):
                lines.append(f"    let action = memory.act(&{row!r});")
                lines.append(f"    assert!({said} == [{', '.join(literal(v) for v in want)}]);")
        checks += lines
    (tmp_path / "tree.rs").write_text(
        "#![deny(warnings)]\n" + "".join(modules) + "fn main() {\n" + "\n".join(checks) + "\n}\n"
    )
    command = ["rustc", "--edition", "2021", "-o", tmp_path / "tree", tmp_path / "tree.rs"]
    subprocess.run(command, check=True, capture_output=True)
    subprocess.run([tmp_path / "tree"], check=True)


@pytest.mark.parametrize(("env", "steps"), [(CheeseMaze, 1), (lambda: gym.make("Pendulum-v1"), 2)])
def test_the_python_file_acts_as_the_tree_in_episodes(env, steps) -> None:
    """One environment is run by the exported file, its twin with a history by the tree."""
    base = describe(History(env(), steps))
    torque = Actions("box", ("torque",), low=[-np.inf], high=[np.inf])
    tree = random_tree(6, base.features.n, base.actions if base.actions.discrete else torque, 7, base.features.names)
    value = tree.value if base.actions.discrete else np.clip(tree.value, -2, 2)
    fields = (tree.feature, 0.5 * tree.threshold, tree.children_left, tree.children_right, value)
    tree = Tree(*fields, features=base.features, actions=base.actions).with_origin(history=steps)
    names = run(export(tree, "python"))
    plain, wrapped = env(), History(env(), steps)
    inner = describe(plain)
    for seed in range(3):
        names["reset"]()
        seen, state = plain.reset(seed=seed)[0], wrapped.reset(seed=seed)[0]
        for _ in range(25):
            own, other = names["act"](inner.observe(seen)), tree.act(state)
            np.testing.assert_array_equal(own, other)
            seen, *_ = plain.step(inner.action(own))
            state, *_ = wrapped.step(base.action(other))


def test_the_other_formats_say_what_they_take() -> None:
    tree = CASES["discrete 1"]
    for name in ("sklearn", "smt2"):
        assert "past steps" in export(tree, name) or "last 1 step too" in export(tree, name)
    assert "a[-1]" in export(tree, "text")
    assert "a[-1]" in export(tree, "dot")
    again = Tree.from_json(tree.to_json())
    assert memory_of(again) == memory_of(tree)
    with pytest.raises(CustardError, match="do not fit"):
        export(tree.with_origin(history=2), "c")
    assert "custard_reset" not in export(tree.with_origin(history=None), "c")


def test_verify_and_explain_know_the_names() -> None:
    features = history_features(Features(("angle",), [-1], [1]), FIVE, 1)
    tree = custard.Tree.stump(1, 0.25, 5, 7, features, FIVE)
    assert tree.verify("angle[-1] > 0.3 -> c").holds
    assert tree.verify("angle - angle[-1] > 0 and action[-1] == 6 -> a").holds is False
