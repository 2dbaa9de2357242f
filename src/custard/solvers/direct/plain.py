"""Trees with plain tests and constant leaves: of one leaf, imitated, raced, changed, given allowed actions, smaller."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from custard.solvers.common.evolve import Arm
from custard.solvers.common.mutations import (
    mutate_shape,
    random_shape,
    ways_to_close,
    with_split_leaves,
    without_splits,
)
from custard.solvers.common.race import BudgetUsed
from custard.solvers.direct import experts
from custard.solvers.direct.imitate import Teacher, imitations
from custard.solvers.direct.state import PLAIN, Incumbent
from custard.task.episodes import Episodes
from custard.task.problem import Snapshot
from custard.tree.leaf_actions import LeafActions
from custard.tree.shape import build_tree, shape_of, tree_of
from custard.tree.simplify import simplify
from custard.tree.tree import Tree

if TYPE_CHECKING:
    from custard.solvers.direct.direct import DirectSearch

__all__ = [
    "arm_count", "imitate", "improve", "prefer_allowed", "race", "race_arms", "shrink", "try_constants",
    "with_allowed_leaves",
]  # fmt: skip

CONSTANT_EPISODES, MAX_CONSTANTS, CONSTANTS_BUDGET_SHARE = 8, 8, 0.03  # of trees of one leaf; such trees; of the budget
ONE_TEACHER_SHARE = 0.3  # of the steps left for imitation, for one teacher
FINALISTS, FINALISTS_PER_SIZE = 80, 3  # imitating trees that are compared: the best ones, and the best of each size
MIN_FINALISTS, RANKING_ROUNDS = 8, 4  # the worse half drops out in each round
MAX_RACING_TREES = 4
RANKING_STEPS_SHARE = 0.08  # of a racing tree's steps, for comparing it with the others
MAX_RANKING_EPISODES = 256
MIN_EPISODES_PER_RACING_TREE = 1500  # for its numbers, before it is compared: fewer trees race otherwise
MIN_LARGE_TREE_SHARE = 0.75  # of the leaves allowed: one tree that races has more, since it can be improved most
FIRST_SEARCH_DEVIATION = 1.0  # of the search for all numbers of a tree that only imitates, in its units
LATER_SEARCH_DEVIATION = 0.5
GROWN_TREE_SEARCH_DEVIATION = 0.3  # of those that begin with more leaves
LEAF_VISIT_EPISODES = 4  # that show which leaves most states reach
MAX_RANDOM_TREES, RANDOM_TREE_EPISODES, MAX_RANDOM_TREE_DEPTH = 32, 6, 3  # where there is no expert
MAX_SPLIT_DROPS = 8  # smaller trees without one split that are compared at a time
CHALLENGERS_PER_COMPARISON = 24  # changed trees that are compared with the present one at a time
SECOND_CHANGE_SHARE = 0.3  # share of them with a further change


def try_constants(run: DirectSearch) -> Iterator[Snapshot]:
    """Judge trees of one leaf."""
    rng, base, leaf_actions = np.random.default_rng([run.seed, 0]), run.problem.base, run.leaf_actions
    actions = (
        np.array([leaf_actions.low, (leaf_actions.low + leaf_actions.high) / 2, leaf_actions.high])
        if leaf_actions.all is None
        else leaf_actions.all
    )
    if base.actions.kind == "multi":
        actions = np.rint(actions).astype(np.int64)
    chosen = [actions[i] for i in rng.permutation(len(actions))[:MAX_CONSTANTS]]
    trees = [Tree.leaf(action, base.features, base.actions) for action in chosen]
    run.state.incumbents[PLAIN] = Incumbent(trees[0])
    affordable = CONSTANTS_BUDGET_SHARE * run.budget / (len(trees) * (run.racer.max_steps or 1))
    episodes = int(np.clip(affordable, 2, CONSTANT_EPISODES))
    results = run.racer.screen(trees, episodes, keep_states=True)
    _warn_of_endless_episodes(run, results)
    means = [float(result.returns.mean()) for result in results]
    run.state.constant_return = max(means)
    run.state.has_masks = any(result.masks.shape[1] > 0 for result in results)
    never_forbidden = [not result.forbidden.any() for result in results]
    run.keep_states(np.concatenate([result.states for result in results]))
    run.take(PLAIN, trees[max(range(len(trees)), key=lambda k: (never_forbidden[k], means[k]))])
    run.challenge(PLAIN, [arm.tree for arm in run.state.arms])
    yield run.snapshot("trying constant actions")


def _warn_of_endless_episodes(run: DirectSearch, results: list[Episodes]) -> None:
    """Say where episodes are cut, if the environment declares no time limit and ended none of them."""
    is_cut = all((result.lengths >= (run.racer.max_steps or np.inf)).all() for result in results)
    if is_cut and run.problem.source.time_limit is None and not any(r.terminated.any() for r in results):
        warnings.warn(
            f"{run.problem.source.name} declares no time limit and episodes of constant actions do not end: trees "
            f"are compared on episodes of {run.racer.max_steps} steps (max_episode_steps sets another limit)",
            stacklevel=2,
        )


def imitate(run: DirectSearch) -> Iterator[Snapshot]:
    """Fit trees of several sizes to each teacher, and choose those that race."""
    if not run.forms.has_plain or run.max_leaves < 2 or run.max_depth < 1:
        return
    sizes = [run.max_leaves // 2**k for k in range(4, -1, -1) if run.max_leaves // 2**k > 1]
    candidates: list[tuple[float, Tree]] = []
    teachers = experts.teachers(run)
    for later, teacher in zip(range(len(teachers) - 1, -1, -1), teachers, strict=True):
        yield from _imitate_one(run, teacher, sizes, candidates, later)
    if candidates and experts.may_train_another(run, max(mean for mean, _ in candidates)):
        yield from experts.train(run)
        known = {teacher.name for teacher in teachers}
        for teacher in [teacher for teacher in experts.teachers(run) if teacher.name not in known]:
            yield from _imitate_one(run, teacher, sizes, candidates)
    finalists = [arm.tree for arm in run.state.arms] + _best_candidates(candidates, sizes)
    if not teachers or not finalists:
        affordable = int(run.steps_left(run.ends.imitation) / (RANDOM_TREE_EPISODES * run.racer.recent_length))
        finalists += _random_trees(run, int(np.clip(affordable, MAX_RACING_TREES, MAX_RANDOM_TREES)), sizes[-1])
    _choose_racing_trees(run, finalists)
    yield run.snapshot("imitating the expert")


def _imitate_one(
    run: DirectSearch, teacher: Teacher, sizes: list[int], candidates: list[tuple[float, Tree]], later: int = 0
) -> Iterator[Snapshot]:
    """Fit trees to one teacher and add them to the candidates, with the mean returns of a few episodes.

    So many teachers come `later`.
    """
    steps, begun = ONE_TEACHER_SHARE * max(0, run.steps_left(run.ends.imitation)), run.racer.steps
    try:
        for found in imitations(teacher, run.problem.base, run.racer, sizes, run.max_depth, run.seed, steps):
            candidates += found.trees
            run.keep_states(found.states)
            best = max(found.trees, key=lambda entry: entry[0])
            if best[0] > run.state.incumbents[PLAIN].mean:
                run.challenge(PLAIN, [best[1]])
            end = begun + (1 + later) * (run.racer.steps - begun) / found.share  # slow: trees are fitted between steps
            yield replace(run.snapshot("imitating the expert"), slow_until=end)
    except BudgetUsed:  # what was found before takes part in the race
        pass


def _best_candidates(candidates: list[tuple[float, Tree]], sizes: list[int]) -> list[Tree]:
    """Return the best trees, whatever their size, and the best of each size; best first."""
    order = sorted(range(len(candidates)), key=lambda k: -candidates[k][0])
    size_of = [next(size for size in sizes if tree.n_leaves <= size) for _, tree in candidates]
    chosen = set(order[:FINALISTS])
    for size in sizes:
        chosen |= set([k for k in order if size_of[k] == size][:FINALISTS_PER_SIZE])
    return [candidates[k][1] for k in order if k in chosen]


def _choose_racing_trees(run: DirectSearch, finalists: list[Tree]) -> None:
    """Compare the finalists, the most promising first; the best of them, and a large one, are to race."""
    count = arm_count(run, MAX_RACING_TREES, run.ends.race)
    episodes = max(2, run.comparison_episodes // 8)
    affordable = int(run.steps_left(run.ends.imitation) / (RANKING_ROUNDS * episodes * run.racer.recent_length))
    finalists = finalists[: max(affordable, MIN_FINALISTS)]
    try:
        ranked = run.racer.rank(finalists, count, episodes, RANKING_ROUNDS)
    except BudgetUsed:
        ranked = list(range(min(count, len(finalists))))
    large = [i for i, tree in enumerate(finalists) if tree.n_leaves > MIN_LARGE_TREE_SHARE * run.max_leaves]
    if large and not set(large) & set(ranked):
        ranked = [*ranked[: max(1, count - 1)], large[0]]
    run.state.arms = [Arm.begin(finalists[i], run.seed, 1, k) for k, i in enumerate(ranked)]
    run.challenge(PLAIN, [run.state.arms[0].tree])


def race(run: DirectSearch) -> Iterator[Snapshot]:
    """Let the trees that imitate best race."""
    yield from race_arms(run, PLAIN, run.ends.race, "racing trees", FIRST_SEARCH_DEVIATION)


def arm_count(run: DirectSearch, most: int, end: float) -> int:
    """Return how many trees can race until a share of the budget is used: each should have enough episodes."""
    count, episodes = most, run.steps_left(end) / run.racer.recent_length
    while count > 1 and episodes / (count * (1 + np.log2(count))) < MIN_EPISODES_PER_RACING_TREE:
        count //= 2
    return count


def race_arms(
    run: DirectSearch, form: str, end: float, message: str, deviation: float, moves_sums: bool = False
) -> Iterator[Snapshot]:
    """Search for the numbers of the trees in `state.arms`, and drop the worse half again and again."""
    state = run.state
    while state.arms:
        rungs = 1 + int(np.log2(len(state.arms)))
        share = run.steps_left(end) / rungs / len(state.arms)
        for arm in state.arms:
            yield from run.evolve(arm, arm.steps + (1 - RANKING_STEPS_SHARE) * share, message, deviation, moves_sums)
        episodes = int(np.clip(RANKING_STEPS_SHARE * share / run.racer.recent_length, 4, MAX_RANKING_EPISODES))
        trees = [arm.tree for arm in state.arms]
        best = [state.arms[i] for i in run.racer.rank(trees, max(1, len(trees) // 2), episodes, rounds=1)]
        run.challenge(form, [arm.tree for arm in best])
        state.arms = best if rungs > 1 else []
        run.save()
        yield run.snapshot(message)


def improve(run: DirectSearch, number: int, end: float) -> Iterator[Snapshot]:
    """Search for all numbers of the best tree, every so many rounds, or for a better shape.

    Where actions are vectors the search begins with more leaves: their values can then be moved apart.
    """
    tree = run.state.incumbents[PLAIN].tree
    rng = np.random.default_rng([run.seed, 2, number])
    if run.is_evolution(PLAIN, number):
        if not tree.actions.discrete:
            met = run.racer.screen([tree], LEAF_VISIT_EPISODES, keep_states=True)[0].states
            count = min(tree.n_leaves, run.max_leaves - tree.n_leaves)
            tree = with_split_leaves(tree, rng, tree.features.extend(met), count, run.max_depth)
        arm = Arm.begin(tree, run.seed, 3, number)
        deviation = LATER_SEARCH_DEVIATION if tree.actions.discrete else GROWN_TREE_SEARCH_DEVIATION
        yield from run.evolve(arm, run.steps_left(end) / 3, "refining", deviation=deviation)
        run.challenge(PLAIN, [arm.tree])
    else:
        changed = changed_trees(tree, run.state.states, rng, run.max_depth, run.max_leaves)
        run.accept(PLAIN, run.racer.improve(tree, changed, run.comparison_episodes))


def changed_trees(
    tree: Tree, states: np.ndarray, rng: np.random.Generator, max_depth: int, max_leaves: int
) -> list[Tree]:
    """Return trees with one or two random changes of shape; `states` [M, n] say where thresholds may lie."""
    states = tree.features.extend(states)
    leaf_actions, spread = LeafActions(tree.actions), states.std(axis=0)
    changed = []
    for _ in range(CHALLENGERS_PER_COMPARISON):
        shape = shape_of(tree)
        for _ in range(2 if rng.random() < SECOND_CHANGE_SHARE else 1):
            shape = mutate_shape(shape, rng, states, spread, leaf_actions, max_depth, max_leaves)
        changed.append(simplify(tree_of(shape, tree)))
    return changed


def prefer_allowed(run: DirectSearch) -> Iterator[Snapshot]:
    """Give leaves actions that the environment allows in every state they meet, if the return does not suffer."""
    for form in list(run.state.incumbents) if run.state.has_masks else []:
        tree = run.state.incumbents[form].tree
        met = run.racer.screen([tree], run.comparison_episodes, keep_states=True)[0]
        changed = with_allowed_leaves(tree, met.states, met.masks)
        if changed is not tree:
            run.accept(form, run.racer.simplest(tree, [changed], len(met.returns), run.tolerance(form)))
        yield run.snapshot("preferring allowed actions")


def shrink(run: DirectSearch) -> Iterator[Snapshot]:
    """Take splits away that the return does not need."""
    while run.forms.has_plain:
        tree = run.state.incumbents[PLAIN].tree
        if tree.n_leaves == 1:
            break
        smaller = run.allowed([simplify(each) for each in smaller_trees(run, tree)])
        winner = run.racer.simplest(tree, smaller, run.comparison_episodes, run.tolerance(PLAIN))
        run.accept(PLAIN, winner)
        if winner.is_new:
            run.save()
        yield run.snapshot("shrinking")
        if not winner.is_new:
            break


def smaller_trees(run: DirectSearch, tree: Tree) -> list[Tree]:
    """Return trees without one, two, four, … splits: those that a few episodes need least."""
    ways = ways_to_close(tree)
    results = run.racer.screen(
        [without_splits(tree, dict([way])) for way in ways], max(2, run.comparison_episodes // 8)
    )
    order = np.argsort([-result.returns.mean() for result in results], kind="stable")
    closed: dict[int, int] = {}  # every split once, in the order of its better branch
    for node, side in (ways[i] for i in order):
        closed.setdefault(node, side)
    counts = [2**k for k in range(len(closed).bit_length()) if 2**k <= len(closed)]
    several = [without_splits(tree, dict(list(closed.items())[:count])) for count in counts]
    return several + [without_splits(tree, dict([ways[i]])) for i in order[1:MAX_SPLIT_DROPS]]


def with_allowed_leaves(tree: Tree, states: np.ndarray, masks: np.ndarray) -> Tree:
    """Return a tree whose leaves hold actions that are allowed in every state they met, where there is one.

    A leaf whose action is forbidden in some state gets the action of the nearest leaf (in the order of the nodes) that
    is allowed in all of its states, or any other that is. `states` [M, n] are those that the tree met, `masks` [M, A]
    what was allowed there.

    >>> from custard.core.actions import Actions
    >>> from custard.core.features import Features
    >>> tree = Tree.stump(0, 0.0, 0, 1, Features(("x",), [-1], [1]), Actions("discrete", ("a", "b")))
    >>> met, allowed = np.array([[-0.5], [0.2], [0.7]]), np.array([[0, 1], [1, 1], [1, 1]], dtype=bool)
    >>> with_allowed_leaves(tree, met, allowed).value.tolist()
    [0, 1, 1]
    """
    if not len(states) or not masks.shape[1] or not tree.actions.discrete:
        return tree
    start, value, leaves = tree.actions.start, tree.value.copy(), tree.apply(states)
    present = np.unique(leaves)
    for leaf in present.tolist():
        allowed = masks[leaves == leaf].all(axis=0)
        if allowed[tree.value[leaf] - start] or not allowed.any():
            continue
        others = sorted((abs(other - leaf), int(tree.value[other])) for other in present.tolist())
        near = [action for _, action in others if allowed[action - start]]
        value[leaf] = near[0] if near else start + int(np.flatnonzero(allowed)[0])
    return tree if np.array_equal(value, tree.value) else replace(tree, value=value)


def _random_trees(run: DirectSearch, count: int, max_leaves: int) -> list[Tree]:
    """Return random trees whose thresholds lie among the states that were met."""
    base, rng = run.problem.base, np.random.default_rng([run.seed, 7])
    leaf_actions, x = LeafActions(base.actions), base.features.extend(run.state.states)
    depth = max(1, min(MAX_RANDOM_TREE_DEPTH, run.max_depth, int(np.log2(max_leaves))))
    shapes = [random_shape(rng, x, leaf_actions, depth) for _ in range(count)]
    return [simplify(build_tree(shape, base.features, base.actions)) for shape in shapes]
