"""Exact reachability and value, cross-checked against Storm on the exported PRISM model of MDP × tree."""

from __future__ import annotations

from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest

import custard
from custard import CustardError, Tree
from custard.core.mdp import FiniteMDP
from custard.planning.evaluate import tree_value
from custard.planning.reach import reach_probability
from custard.tree.export.prism import to_prism
from tests.planning.random_mdp import random_mdp


def greedy_tree(mdp: FiniteMDP) -> Tree:
    """A good tree: a greedy fit to a best policy."""
    from sklearn.tree import DecisionTreeClassifier

    from custard.planning.solve import value_iteration

    _, q = value_iteration(mdp)
    open_states = ~mdp.terminal & np.isfinite(q).any(axis=1)
    best = np.nan_to_num(q[open_states], neginf=-1e9).argmax(axis=1)
    fitted = DecisionTreeClassifier(random_state=0).fit(mdp.x[open_states], best + mdp.actions.start)
    return Tree.from_sklearn(fitted, mdp.features, mdp.actions)


def storm(path: Path, text: str, queries: list[str]) -> list[float]:
    stormpy = pytest.importorskip("stormpy", reason="stormpy is not installed")
    path.write_text(text)
    program = stormpy.parse_prism_program(str(path))
    if hasattr(stormpy, "parse_properties_for_prism_program"):
        properties = stormpy.parse_properties_for_prism_program(";".join(queries), program)
    else:
        properties = stormpy.parse_properties(";".join(queries), program)
    model = stormpy.build_model(program, properties)
    # Elimination is a direct method; Storm's iterative ones stop at a relative error of 1e-6.
    environment = stormpy.Environment()
    if hasattr(environment, "solver_environment"):
        solver, kinds = environment.solver_environment, stormpy.EquationSolverType
        solver.set_linear_equation_solver_type(kinds.elimination)
    else:
        solver, kinds = environment.solver(), stormpy.environments.EquationSolverType
        solver.set_linear_equation_solver_type(kinds.ELIMINATION)
    results = [stormpy.model_checking(model, prop, environment=environment) for prop in properties]
    start = model.initial_states[0]
    return [float((result.at if hasattr(result, "at") else result.get_value)(start)) for result in results]


def check(tmp_path: Path, mdp: FiniteMDP, tree: Tree, target: np.ndarray) -> None:
    text = to_prism(tree, mdp, target)
    steps = [0, 1, 3, 10]
    queries = ['R{"gain"}=? [F "done"]', 'R{"loss"}=? [F "done"]']
    queries += [] if mdp.gamma < 1 else ['P=? [F "target"]', *(f'P=? [F<={k + 1} "target"]' for k in steps)]
    gain, loss, *reached = storm(tmp_path / "chain.prism", text, queries)
    assert gain - loss == pytest.approx(tree_value(tree, mdp), abs=1e-6)
    if reached:
        assert reached[0] == pytest.approx(reach_probability(tree, mdp, target), abs=1e-6)
        for k, probability in zip(steps, reached[1:], strict=True):
            assert probability == pytest.approx(reach_probability(tree, mdp, target, k), abs=1e-6)


@pytest.mark.parametrize("m", [4, 5, 6, 7, 8])
@pytest.mark.parametrize("rho", [0.0, 0.2])
def test_storm_agrees_on_prereq_world(tmp_path: Path, m: int, rho: float) -> None:
    mdp = gym.make("custard/PrereqWorld-v0", m=m, rho=rho).unwrapped.mdp()
    tree = greedy_tree(mdp)
    assert np.isfinite(tree_value(tree, mdp))
    check(tmp_path, mdp, tree, mdp.x[:, 2] == 1)


@pytest.mark.parametrize("gamma", [1.0, 0.95])
def test_storm_agrees_on_a_stochastic_model(tmp_path: Path, gamma: float) -> None:
    from dataclasses import replace

    for seed in range(3):
        mdp = replace(random_mdp(n_features=3, n_actions=3, seed=seed), gamma=gamma)
        tree = greedy_tree(mdp)
        if not np.isfinite(tree_value(tree, mdp)):
            continue
        check(tmp_path, mdp, tree, np.arange(mdp.n_states) % 3 == 0)


def test_reaching_against_rollouts_of_the_chain() -> None:
    mdp = random_mdp(n_features=3, n_actions=3, seed=5)
    tree = greedy_tree(mdp)
    choice = tree.predict(mdp.x, compiled=False) - mdp.actions.start
    target = np.arange(mdp.n_states) % 4 == 1
    rng = np.random.default_rng(0)
    matrix = np.stack([mdp.transitions[a].toarray()[s] for s, a in enumerate(choice)])
    hits, count = 0, 3000
    for _ in range(count):
        state = rng.choice(mdp.n_states, p=mdp.start)
        for _ in range(6):
            if target[state] or mdp.terminal[state]:
                break
            state = rng.choice(mdp.n_states, p=matrix[state])
        hits += bool(target[state])
    probability = reach_probability(tree, mdp, target, 6)
    assert abs(hits / count - probability) < 4 * np.sqrt(0.25 / count)
    ever = [reach_probability(tree, mdp, target, k) for k in (0, 1, 5, 50, 5000)]
    assert ever == sorted(ever)
    assert reach_probability(tree, mdp, target) == pytest.approx(ever[-1], abs=1e-9)


def test_mistakes() -> None:
    mdp = gym.make("custard/PrereqWorld-v0", m=2).unwrapped.mdp()
    tree = custard.Tree.leaf(0, mdp.features, mdp.actions)
    with pytest.raises(CustardError, match="one truth value"):
        reach_probability(tree, mdp, np.zeros(3, dtype=bool))
    with pytest.raises(CustardError, match="must not be negative"):
        reach_probability(tree, mdp, mdp.terminal, -1)
