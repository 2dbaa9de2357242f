"""Trees over weighted sums, or with linear leaves: made of the linear policy, then with fewer and better numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from custard.solvers.common.evolve import Arm
from custard.solvers.common.linear_trees import (
    MAX_TOURNAMENT_ACTIONS,
    coefficients,
    linear_tree,
    random_linear_tree,
    with_few_terms,
    with_named_sums,
    with_random_split,
    with_rounded_numbers,
    without_coefficients,
)
from custard.solvers.common.mutations import trees_without_one_split
from custard.solvers.common.race import BudgetUsed, number_count
from custard.solvers.direct.plain import arm_count, race_arms
from custard.solvers.direct.state import CHANGES_PER_EVOLUTION, SUMS
from custard.task.problem import Snapshot
from custard.tree.tree import Tree

if TYPE_CHECKING:
    from custard.solvers.direct.direct import DirectSearch

__all__ = ["begin", "compare_finally", "improve", "round_numbers", "search"]

LINEAR_POLICY_EPISODES = 4  # that show which actions it takes, and where features lie
MAX_LINEAR_LEAVES = 4  # that trees with linear leaves grow to
GROWN_TREES_PER_SEARCH = 4
MAX_RANDOM_RACING_TREES, MAX_NUMBERS_PER_RANDOM_TREE = 8, 200
RANDOM_TREE_NUMBERS_DEVIATION = 1.0  # of the search for their numbers, in its units
PRUNED_COEFFICIENT_SHARES = 0.2, 0.4  # of all coefficients, before all numbers are searched for again
MAX_COEFFICIENT_DROPS, MAX_SPLIT_DROPS = 32, 4  # coefficients that are tried without, and splits
EVOLUTION_STEPS_SHARE = 0.15  # of the steps left, for a search for all numbers; twice as much after one that failed
EVOLUTION_DEVIATION = 0.3  # of such a search, in its units
REFERENCE_EPISODE_FACTOR = 3  # episodes that compare a tree with the best one, per one that compares trees otherwise
MAX_REFERENCE_COMPARISONS = 4  # where one leaves unclear whether too much was lost
CLEAR_LOSS_STANDARD_ERRORS = 2.0
MIN_FINAL_COMPARISON_EPISODES, MAX_FINAL_COMPARISON_EPISODES = 8, 400  # of the result with the reference trees
MAX_LOSS_FACTOR = 2.0  # times what smaller trees may lose, after which the best tree takes their place again
ROUNDING_DIGITS = 3, 2  # to which numbers are rounded if the return allows


def begin(run: DirectSearch) -> Iterator[Snapshot]:
    """Turn the linear policy into a tree, so that there is a first result."""
    state = run.state
    if not run.forms.has_sums or not len(state.linear_weights):
        return
    run.keep_states(run.racer.screen([run.linear_policy], LINEAR_POLICY_EPISODES, keep_states=True)[0].states)
    most = min(MAX_TOURNAMENT_ACTIONS, run.max_depth + 1, 1 + int(np.log2(run.max_leaves)))
    tree = linear_tree(run.linear_policy, run.problem.base.features, state.states, most)
    short = with_few_terms(tree, state.states, run.forms.max_terms, run.forms.max_gains)
    if short is not tree:  # the numbers that are left have to be searched for again before more are taken away
        state.rounds[SUMS] = CHANGES_PER_EVOLUTION
    run.take(SUMS, with_named_sums(short))
    state.references = [state.incumbents[SUMS].tree]
    yield run.snapshot("the linear policy as a tree")


def search(run: DirectSearch) -> Iterator[Snapshot]:
    """Search for a small tree of sums that acts as well as the linear policy; not where that is far behind."""
    state = run.state
    if SUMS not in state.incumbents:
        return
    if run.forms.leaves_are_linear:
        yield from race_random_trees(run)
    value = max(state.linear_return, state.incumbents[SUMS].mean)
    if run.forms.has_plain and not run.is_worth_improving(value):
        return
    while run.steps_left(run.ends.sums) > 0 and not run.is_stuck(SUMS):
        yield from run.improve(SUMS, run.ends.sums)


def race_random_trees(run: DirectSearch) -> Iterator[Snapshot]:
    """Let trees with random sums and linear leaves race, as one linear leaf may be too few whatever its numbers are."""
    state, features, actions = run.state, run.problem.base.features, run.problem.base.actions
    if not state.has_raced_sums:
        most = min(MAX_LINEAR_LEAVES, run.max_leaves, 2 ** min(run.max_depth, MAX_LINEAR_LEAVES))
        end = (run.racer.steps / run.budget + run.ends.sums) / 2
        threshold = run.problem.source.reward_threshold
        is_enough = threshold is not None and state.linear_return >= threshold
        is_large = most * (actions.size + 1) * (features.n_raw + 1) > MAX_NUMBERS_PER_RANDOM_TREE
        count = 0 if is_enough or is_large or most < 2 else arm_count(run, MAX_RANDOM_RACING_TREES, end)
        rng, state.arms = np.random.default_rng([run.seed, 8]), []
        for k in range(count if count > 1 else 0):
            tree = random_linear_tree(features, actions, state.states, rng, 2 + k % (most - 1), run.max_depth)
            tree = with_few_terms(tree, state.states, run.forms.max_terms, run.forms.max_gains)
            state.arms.append(Arm.begin(tree, run.seed, 9, k))
        state.has_raced_sums, state.race_end = True, end
        run.save()
    yield from race_arms(
        run, SUMS, state.race_end, "racing trees with linear leaves", RANDOM_TREE_NUMBERS_DEVIATION, moves_sums=True
    )


def improve(run: DirectSearch, number: int, end: float) -> Iterator[Snapshot]:
    """Search for all numbers, every so many rounds, or take splits and coefficients away that nothing needs."""
    state, tree = run.state, run.state.incumbents[SUMS].tree
    if not run.is_evolution(SUMS, number):
        smaller = run.allowed(smaller_trees(run, tree))
        run.accept(SUMS, run.racer.simplest(tree, smaller, run.comparison_episodes, run.tolerance(SUMS)))
        return
    compare_with_reference(run)
    tree = state.incumbents[SUMS].tree
    rng, starts = np.random.default_rng([run.seed, 5, number]), [tree]
    can_grow = run.forms.leaves_are_linear and tree.n_leaves < min(MAX_LINEAR_LEAVES, run.max_leaves)
    if can_grow and run.max_depth > 0:
        larger = [with_random_split(tree, state.states, rng, run.max_depth) for _ in range(GROWN_TREES_PER_SEARCH)]
        starts += [with_few_terms(each, state.states, run.forms.max_terms, run.forms.max_gains) for each in larger]
    failures = state.failures.get(SUMS, 0)
    found = coefficients(tree, state.states)
    pruned = [
        without_coefficients(tree, found[: int(share * len(found))], state.states)
        for share in PRUNED_COEFFICIENT_SHARES
    ]
    pruned += smaller_by_one_split(run, tree)[:1]
    pruned = [each for each in pruned if failures == 0 and number_count(each) < number_count(tree)]
    trees = [*starts, *pruned]
    arms = [Arm.begin(start, run.seed, 6, number, k) for k, start in enumerate(trees)]
    steps = EVOLUTION_STEPS_SHARE * 2**failures * run.steps_left(end) / len(arms)
    for arm in arms:
        yield from run.evolve(arm, steps, "searching sums", moves_sums=True, deviation=EVOLUTION_DEVIATION)
    run.challenge(SUMS, [arm.tree for arm in arms[: len(starts)]])
    smaller = run.allowed([with_named_sums(arm.tree) for arm in arms[len(starts) :]])
    tree = state.incumbents[SUMS].tree
    run.accept(SUMS, run.racer.simplest(tree, smaller, run.comparison_episodes, run.tolerance(SUMS)))


def compare_with_reference(run: DirectSearch) -> None:
    """Measure what smaller trees have lost against the best tree of late, on episodes that chose none of them.

    What comparisons say that each of them lost is too little, as those won that were lucky.
    """
    state, tree = run.state, run.state.incumbents[SUMS].tree
    best, most = (state.references or [tree])[-1], MAX_LOSS_FACTOR * run.tolerated_losses(SUMS)
    loss = _measured_loss(run, tree, best, most)
    if loss <= 0.0:
        state.references = [*state.references[:1], tree]
    elif loss > most:
        run.take(SUMS, best)
        loss = 0.0
    state.losses[SUMS] = max(0.0, loss)


def compare_finally(run: DirectSearch, steps: float) -> None:
    """Measure once more, in so many steps, what the tree loses against the first and the best: one of them may return.

    A tree that fails in one of ten episodes fails in none of thirty now and then, and among many that are compared it
    is such a one that wins.
    """
    state = run.state
    if SUMS not in state.incumbents:
        return
    tree = state.incumbents[SUMS].tree
    others = [each for each in state.references if each != tree]
    episodes = min(MAX_FINAL_COMPARISON_EPISODES, int(steps / ((1 + len(others)) * run.racer.recent_length)))
    if not others or episodes < MIN_FINAL_COMPARISON_EPISODES:
        return
    own, *results = run.racer.screen([tree, *others], episodes)
    losses = [result.returns - own.returns for result in results]
    best = max(range(len(others)), key=lambda k: losses[k].mean())
    loss, error = float(losses[best].mean()), float(losses[best].std()) / np.sqrt(episodes)
    if loss > MAX_LOSS_FACTOR * run.tolerated_losses(SUMS) and loss > error:
        run.take(SUMS, others[best])


def _measured_loss(run: DirectSearch, tree: Tree, best: Tree, most: float) -> float:
    """Return what `tree` returns less than `best` on average.

    More episodes run while it is not clear whether that is more than `most`: a tree that fails in one of twenty
    episodes may fail in none of fifty.
    """
    losses = np.zeros(0)
    for _ in range(MAX_REFERENCE_COMPARISONS if tree != best else 0):
        try:
            results = run.racer.screen([tree, best], REFERENCE_EPISODE_FACTOR * run.comparison_episodes)
        except BudgetUsed:
            if not len(losses):
                raise
            break
        losses = np.append(losses, results[1].returns - results[0].returns)
        if abs(losses.mean() - most) >= CLEAR_LOSS_STANDARD_ERRORS * losses.std() / np.sqrt(len(losses)):
            break
    return float(losses.mean()) if len(losses) else 0.0


def smaller_trees(run: DirectSearch, tree: Tree) -> list[Tree]:
    """Return trees without one split, and trees without several coefficients: those that a few episodes need least."""
    states = run.state.states
    singles = coefficients(tree, states)[:MAX_COEFFICIENT_DROPS]
    by_return = _order_by_return(run, [without_coefficients(tree, [each], states) for each in singles])
    counts = [2**k for k in range(len(singles).bit_length()) if 2**k < len(singles)]
    fewer = [without_coefficients(tree, [singles[i] for i in by_return[:count]], states) for count in counts]
    return fewer + smaller_by_one_split(run, tree)[:MAX_SPLIT_DROPS]


def smaller_by_one_split(run: DirectSearch, tree: Tree) -> list[Tree]:
    """Return the trees without one split, those first that return most on a few episodes."""
    trees = [with_named_sums(each) for each in trees_without_one_split(tree)]
    return [trees[i] for i in _order_by_return(run, trees)]


def _order_by_return(run: DirectSearch, trees: list[Tree]) -> list[int]:
    """Return the numbers of trees in descending order of what they return on a few common episodes."""
    results = run.racer.screen(trees, max(2, run.comparison_episodes // 6))
    return np.argsort([-result.returns.mean() for result in results], kind="stable").tolist()


def round_numbers(run: DirectSearch) -> Iterator[Snapshot]:
    """Round the numbers of the tree of sums, if the return allows."""
    if SUMS not in run.state.incumbents:
        return
    for digits in ROUNDING_DIGITS if run.settings.digits is None else (run.settings.digits,):
        tree = run.state.incumbents[SUMS].tree
        short = with_named_sums(with_rounded_numbers(tree, digits))
        run.accept(SUMS, run.racer.simplest(tree, [short], 2 * run.comparison_episodes, run.tolerance(SUMS)))
        yield run.snapshot("rounding")
