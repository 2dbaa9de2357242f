"""The best tree there is (`method="plan"`) for a finite MDP and a depth limit: with a proof, or with the gap left.

Discounted models: a search over constraints (`constraint_search`) and climbing (`climbing`) take turns. Others, and
where questions have a price: a search for a tree that loses nothing (`labelling`); good trees by fitting and climbing
(`candidates`); branch and bound until no better tree can exist (`branch`). Then the same for trees of equal return and
fewer leaves. At any time there is a best tree and a bound that no tree exceeds; the tree's origin holds both.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from custard.core.errors import CustardError
from custard.core.mdp import FiniteMDP
from custard.core.spaces import Base
from custard.core.threads import one_thread
from custard.planning.branch import search as branch_and_bound
from custard.planning.candidates import climb, perturbed, refits
from custard.planning.climbing import Climber
from custard.planning.compile_first import compile_first
from custard.planning.constraint_search import ConstraintSearch
from custard.planning.fixed_starts import plan_from_starts
from custard.planning.incumbents import load_trees, shape_on
from custard.planning.labelling import best_choices, lossless_tree
from custard.planning.local_search import MAX_HEAP_DEPTH
from custard.planning.model import NoModelError, model_of
from custard.planning.plans import Plan, finite, snapshot_of
from custard.planning.points import points_of
from custard.planning.reduced import ReducedMDP, reduce
from custard.task.problem import Problem, Snapshot
from custard.task.source import Source
from custard.tree.shape import Shape, Split, count_leaves
from custard.tree.tree import Tree

__all__ = ["PRESETS", "Plan", "Settings", "best_tree", "fixed_start", "model_to_plan", "plan", "snapshot_of", "solve"]

MAX_AUTO_DEPTH = 16  # where no depth limit is given, the search for the smallest sufficient depth ends here
DEPTH_WITHOUT_ANSWER = 5  # where what is sufficient cannot be decided in time
LOSSLESS_TIME_SHARE = 0.3  # of the time, for the search for a tree that loses nothing
LOSSLESS_SECONDS_PER_DEPTH = 5.0  # for the same search at each depth, where no depth limit is given
REFIT_ROUNDS = 12  # trees fitted to Q-values and climbed before random changes begin
MAX_IDLE_CLIMBS = 40  # climbs without a better tree after which climbing ends
REPORT_SECONDS = 0.2  # how often climbing reports
MAX_BRANCH_STATES = 100_000  # beyond, undiscounted models are only labelled: one bound would take longer than a second
MAX_STUMPS = 50_000  # up to here every tree of depth 1 is tried
STUMP_TIME_SHARE = 0.5  # of the time, for trying them
OFFER_SECONDS = 0.1  # for climbing from a tree that the search over constraints proposes
SLICE_SECONDS = 0.2  # the search over constraints and climbing take turns; this is the search's
MAX_CLIMB_SHARE, MIN_CLIMB_SHARE = 2.0, 0.6  # of a slice, for climbing: more while it finds better trees
IDLE_SHRINK = 0.9  # of that share after a turn without a better tree


@dataclass(frozen=True)
class Settings:
    """What is optimised, and for how long."""

    zeta: float = 0.0  # 0: the return, then the fewest leaves. Below 0: the return plus zeta per question asked
    gamma: float = 1.0  # discount of the return
    time_limit: bool = True  # whether the environment's own time limit cuts episodes in the model too
    seconds: float = 60.0  # stop after this long, with the best tree and the gap
    climbing: float = 0.2  # share of the time for climbing before the proof begins
    fewest_leaves: bool = True  # look for the fewest leaves once the return is proved
    start: str | None = None  # trees to begin from: files or run directories, separated by commas
    start_seed: int | None = None  # plan for the starts of this seed and the next ones alone; steps without chance
    episodes: int = 1  # with start_seed: how many starts
    splits: int = 9  # with start_seed: thresholds per feature, evenly spaced between its bounds
    step: float = 0.002  # PotholeWorld: the width of a grid cell
    budget: int | None = None  # environment steps: none are used

    def __post_init__(self) -> None:
        if not np.isfinite(self.zeta) or self.zeta > 0:
            raise CustardError(f"zeta={self.zeta!r} must be zero or a negative number: it is the price of a question")
        if not self.seconds > 0:
            raise CustardError(f"seconds={self.seconds!r} must be positive")


PRESETS: dict[str, dict[str, dict[str, Any]]] = {"tuned": {"": {}}, "paper": {"": {}}}


def best_tree(
    mdp: FiniteMDP, max_depth: int | None = None, *, seed: int = 0, incumbents: Sequence[Tree] = (), **settings: Any
) -> Plan:
    """Return the best tree of a finite MDP: the last item of `plan`.

    >>> import gymnasium as gym, custard
    >>> best = best_tree(gym.make("custard/PrereqWorld-v0", m=7).unwrapped.mdp(), max_depth=3)
    >>> best.value, best.tree.depth, best.tree.n_leaves, best.optimal, best.fewest
    (-4.0, 3, 5, True, True)
    """
    return list(plan(mdp, max_depth, Settings(**settings), seed=seed, incumbents=incumbents))[-1]


def plan(
    mdp: FiniteMDP, max_depth: int | None, settings: Settings, *, seed: int = 0, incumbents: Sequence[Tree] = ()
) -> Iterator[Plan]:
    """Yield better and better trees, and lower and lower bounds, until both meet or time is up.

    mdp         the model
    max_depth   the largest number of splits on a path; None for the smallest that loses nothing
    settings    what is optimised, and for how long
    seed        of all randomness
    incumbents  trees to begin from, such as those that tpi found; `settings.start` names files of such trees
    """
    if max_depth is not None and (int(max_depth) != max_depth or max_depth < 0):
        raise CustardError(f"max_depth={max_depth!r} must be a whole number of at least 0, or None")
    _check_ends(mdp)
    compile_first(mdp)
    began = time.monotonic()
    deadline = began + settings.seconds
    problem = reduce(mdp, deadline)
    asked = _sufficient_depth(problem, deadline) if max_depth is None else int(max_depth)
    state = _Incumbent(problem, settings, asked)
    depth = state.depth
    rng = np.random.default_rng(seed)
    is_large = problem.n > MAX_BRANCH_STATES
    fixed = problem.fixed_returns()
    if fixed is not None:
        state.offer(int(np.flatnonzero(fixed >= fixed.max() - problem.tolerance)[0]))
    for action in range(0 if fixed is not None else 1 if is_large and depth > 0 else problem.n_actions):
        state.offer(action)
    if depth == 0:
        state.bound, state.fewest = state.value, True
    for tree in (*incumbents, *load_trees(settings.start)):
        state.offer(shape_on(tree, problem, depth))
    if np.isposinf(state.value):
        raise CustardError("with gamma=1 some tree goes on gaining for ever: give gamma below 1, or a horizon")
    yield state.plan("fixed actions tried")
    if settings.zeta == 0.0 and mdp.gamma < 1.0 and mdp.horizon is None and 0 < depth <= MAX_HEAP_DEPTH:
        yield from _discounted(state, seed, deadline)
    elif settings.zeta == 0.0:
        share = 1.0 if is_large else LOSSLESS_TIME_SHARE
        lossless = lossless_tree(problem, depth, min(deadline, began + share * settings.seconds))
        if lossless.shape is not None:
            state.offer(lossless.shape)
            state.fewest = lossless.complete
        elif lossless.complete:
            state.bound = min(state.bound, _next_return(problem))
        yield state.plan("best policies looked through")
    if not state.optimal and not state.searched and not is_large:
        yield from _climbing(state, rng, min(deadline, time.monotonic() + settings.climbing * settings.seconds))
        for standing in branch_and_bound(problem, depth, best=state.value, price=-settings.zeta, deadline=deadline):
            state.explored = standing.explored
            if standing.shape is not None:
                state.offer(standing.shape)
            state.bound = min(state.bound, standing.bound) if not standing.finished else state.value
            yield state.plan("branch and bound")
    if state.optimal and not state.fewest and settings.fewest_leaves:
        yield from _fewer_leaves(state, deadline)
    yield state.plan(state.verdict())


def solve(problem: Problem, settings: Settings, state: Any = None) -> Iterator[Snapshot]:
    """Run the method "plan": exact planning on the environment's model."""
    if settings.start_seed is not None:
        for item in plan_from_starts(problem.source, problem.max_depth, seed=problem.seed, **fixed_start(settings)):
            yield snapshot_of(item)
        return
    if problem.source.name.rpartition("/")[2].startswith("PotholeWorld"):
        yield _plan_pothole_world(problem, settings)
        return
    mdp = model_to_plan(problem.source, problem.base, gamma=settings.gamma, limit=settings.time_limit)
    for item in plan(mdp, problem.max_depth, settings, seed=problem.seed):
        yield snapshot_of(item)


def model_to_plan(source: Source, base: Base | None = None, *, gamma: float = 1.0, limit: bool = True) -> FiniteMDP:
    """Return an environment's exact model; where there is none, say what can be planned without."""
    try:
        return model_of(source, base, gamma=gamma, limit=limit)
    except NoModelError as error:
        hint = ". Without a model plan works from fixed starts, if steps leave nothing to chance: start_seed=0"
        raise CustardError(f"{error}{hint if source.make_compiled else ''}") from None


def fixed_start(settings: Settings) -> dict[str, Any]:
    """Return the settings that `plan_from_starts` knows; raise one line where others were changed."""
    if settings.zeta != 0.0:
        raise CustardError("planning from fixed starts maximises the plain return: leave zeta at 0")
    names = ("start_seed", "episodes", "splits", "gamma", "seconds", "start")
    return {name: getattr(settings, name) for name in names}


class _Incumbent:
    """The best tree so far, the bound, and what is proved."""

    def __init__(self, problem: ReducedMDP, settings: Settings, depth: int) -> None:
        self.problem, self.settings, self.max_depth = problem, settings, depth
        self.depth = min(depth, len(problem.splits))  # no path asks the same twice
        self.shape: Shape = 0
        self.value, self.leaves = -np.inf, 1 << 30
        self.bound, self.explored = problem.optimum, 0
        self.fewest = self.searched = False
        self.tolerance = problem.tolerance

    def offer(self, shape: Shape) -> None:
        """Keep a tree if it is better."""
        choice, level = self.problem.decide(shape)
        value = self.problem.value(choice, -self.settings.zeta * level)
        leaves, tolerance = count_leaves(shape), self.problem.tolerance
        if value > self.value + tolerance or (value >= self.value - tolerance and leaves < self.leaves):
            self.shape, self.value, self.leaves = shape, value, leaves

    @property
    def optimal(self) -> bool:
        """Whether no tree can return more."""
        return self.bound <= self.value + self.problem.tolerance or self.bound == self.value

    def plan(self, message: str) -> Plan:
        """Return the present state as a `Plan`."""
        fewest = self.optimal and (self.fewest or self.leaves == 1)
        mdp, bound = self.problem.mdp, max(self.bound, self.value)
        tree = self.problem.tree(self.shape).with_origin(certificate={
            "value": finite(self.value), "bound": finite(bound), "optimum": finite(self.problem.optimum),
            "tolerance": self.tolerance, "max_depth": self.max_depth, "proved": self.optimal, "fewest_leaves": fewest,
            "zeta": self.settings.zeta, "gamma": mdp.gamma, "horizon": mdp.horizon,
            "how": "search over constraints" if self.searched else "labelling, climbing, branch and bound",
        })  # fmt: skip
        return Plan(tree, self.value, bound, self.problem.optimum, self.optimal, fewest, self.explored, message)

    def verdict(self) -> str:
        """Return what is proved, in words."""
        limit = f"depth ≤ {self.max_depth}"
        if not self.optimal:
            return (
                f"not proved: no tree of {limit} returns more than {self.bound:.6g} (gap {self.bound - self.value:.6g})"
            )
        if np.isneginf(self.value):
            return f"proved: no tree of {limit} terminates"
        few = f", none of fewer than {self.leaves} leaves does" if self.fewest or self.leaves == 1 else ""
        return f"proved: no tree of {limit} returns more{few}"


def _discounted(state: _Incumbent, seed: int, deadline: float) -> Iterator[Plan]:
    """Search over constraints and climb, in turns, until nothing is better or time is up.

    Climbing has as much time as the search while it finds better trees, and less and less while it does not.
    """
    state.searched = True
    problem = state.problem
    points = points_of(problem)
    tolerance = state.tolerance = max(problem.tolerance, 1e-9 * float(np.abs(problem.top).max()))
    climber = Climber(points, state.depth, problem.tolerance, seed, problem.optimum - 0.5 * problem.tolerance)

    def keep() -> None:
        if climber.value > state.value + 0.1 * problem.tolerance:
            state.offer(climber.shape)

    def offer(shape: Shape) -> None:
        climber.offer(shape, min(deadline, time.monotonic() + OFFER_SECONDS))
        keep()

    with one_thread():
        if isinstance(state.shape, Split):
            offer(state.shape)
        if state.depth == 1 and len(points.splits) * problem.n_actions**2 <= MAX_STUMPS:
            if climber.try_all_stumps(min(deadline, time.monotonic() + STUMP_TIME_SHARE * state.settings.seconds)):
                keep()
                state.bound = state.value
                yield state.plan("every tree of depth 1 tried")
                return
            keep()
        search = ConstraintSearch(points, state.depth, lambda: state.value + tolerance, offer)
        share = 1.0  # of a slice, for climbing
        while True:
            search.run(min(deadline, time.monotonic() + SLICE_SECONDS), deadline)
            state.explored = search.explored
            state.bound = min(state.bound, max(search.bound, state.value))
            if search.bound <= state.value + tolerance:
                state.bound = state.value
            yield state.plan("search over constraints")
            if state.optimal or time.monotonic() >= deadline:
                return
            seconds = np.inf if search.is_finished else share * SLICE_SECONDS
            improved = climber.run(min(deadline, time.monotonic() + seconds))
            keep()
            share = min(MAX_CLIMB_SHARE, 2.0 * share) if improved else max(MIN_CLIMB_SHARE, IDLE_SHRINK * share)


def _climbing(state: _Incumbent, rng: np.random.Generator, deadline: float) -> Iterator[Plan]:
    """Climb from fits to Q-values, then from random changes to the best, until the time is up or nothing moves."""
    problem, depth, price = state.problem, state.depth, -state.settings.zeta
    if depth == 0:
        return
    if isinstance(state.shape, Split):
        state.offer(climb(problem, state.shape, depth, price, rng, deadline)[0])
    reported_at = time.monotonic()
    for shape in refits(problem, depth, REFIT_ROUNDS, rng, deadline):
        state.offer(shape)
        state.offer(climb(problem, shape, depth, price, rng, deadline)[0])
        if time.monotonic() > deadline or state.optimal:
            break
        if time.monotonic() - reported_at > REPORT_SECONDS:
            yield state.plan("climbing")
            reported_at = time.monotonic()
    # Branch and bound soon ends on small trees; on larger ones a good tree first saves it more than it costs.
    patient = 0.5 * max(0.0, deadline - time.monotonic()) if depth > 2 and problem.n > 20 else 0.0
    idle_climbs, at_least = 0, time.monotonic() + patient
    while time.monotonic() < deadline and not state.optimal:
        if idle_climbs >= MAX_IDLE_CLIMBS and time.monotonic() >= at_least:
            break
        before = (state.value, -state.leaves)
        shape = perturbed(problem, state.shape, depth, rng)
        state.offer(climb(problem, shape, depth, price, rng, deadline)[0])
        idle_climbs = 0 if (state.value, -state.leaves) > before else idle_climbs + 1
        if time.monotonic() - reported_at > REPORT_SECONDS:
            yield state.plan("climbing")
            reported_at = time.monotonic()


def _fewer_leaves(state: _Incumbent, deadline: float) -> Iterator[Plan]:
    """Look for trees of the same return with fewer leaves, from one leaf up, until one is found or none can be."""
    if np.isneginf(state.value):
        return
    for leaves in range(1, state.leaves):
        done = False
        for standing in branch_and_bound(
            state.problem, state.depth, best=state.value, price=-state.settings.zeta, max_leaves=leaves,
            accept_equal=True, deadline=deadline,
        ):  # fmt: skip
            done = standing.finished
            if standing.shape is not None:
                state.offer(standing.shape)
            yield state.plan(f"looking for {leaves} leaves")
        if not done:
            return
        if state.leaves <= leaves:
            break
    state.fewest = True


def _sufficient_depth(problem: ReducedMDP, deadline: float) -> int:
    """Return the smallest depth at which a tree loses nothing; where that cannot be decided in time, at least 5."""
    best = best_choices(problem, deadline)
    for depth in range(MAX_AUTO_DEPTH if best is not None else 0):
        answer = lossless_tree(problem, depth, min(deadline, time.monotonic() + LOSSLESS_SECONDS_PER_DEPTH), best)
        if answer.shape is not None:
            return depth
        if not answer.complete:
            return max(depth, DEPTH_WITHOUT_ANSWER)
    return MAX_AUTO_DEPTH if best is not None else DEPTH_WITHOUT_ANSWER


def _next_return(problem: ReducedMDP) -> float:
    """Return the most that a policy returns that is not a best one: one less where all returns are whole numbers."""
    mdp = problem.mdp
    is_whole = mdp.gamma == 1.0 and (problem.reward == np.round(problem.reward)).all() and (problem.start == 1.0).any()
    if is_whole and all((np.diff(matrix.indptr) == 1).all() for matrix in mdp.transitions):
        return round(problem.optimum) - 1.0
    return problem.optimum


def _check_ends(mdp: FiniteMDP) -> None:
    """Raise where undiscounted episodes never end."""
    if mdp.gamma == 1.0 and mdp.horizon is None and not mdp.terminal.any():
        raise CustardError("the MDP has gamma 1, no horizon and no terminal state: give gamma below 1 or a horizon")


def _plan_pothole_world(problem: Problem, settings: Settings) -> Snapshot:
    """Plan PotholeWorld by intervals: the fewest that reach the depth's best return, by dynamic programming."""
    from custard.planning.pothole import MAX_INTERVALS, best_intervals, interval_tree

    if settings.zeta != 0.0 or settings.gamma != 1.0:
        raise CustardError("plan on PotholeWorld maximises the plain return: leave zeta at 0 and gamma at 1")
    env = problem.source.make().unwrapped
    max_intervals = MAX_INTERVALS if problem.max_depth is None else min(2**problem.max_depth, MAX_INTERVALS)
    found = best_intervals(env, MAX_INTERVALS, settings.step)  # those of fewer intervals are among them
    value, optimum = float(found.values[max_intervals - 1]), float(found.values[-1])
    smallest_sufficient = int(np.flatnonzero(found.values >= value - 1e-6)[0])
    tree = interval_tree(
        found.boundaries[smallest_sufficient],
        found.lanes[smallest_sufficient],
        problem.base.features,
        problem.base.actions,
    )
    how = f"interval dynamic programming on a grid of {settings.step:g}"
    certificate = {
        "value": value, "bound": value, "optimum": optimum, "tolerance": settings.step, "max_depth": problem.max_depth,
        "proved": True, "fewest_leaves": True, "zeta": 0.0, "gamma": 1.0, "horizon": None, "how": how,
    }  # fmt: skip
    tree = tree.with_origin(certificate=certificate)
    return snapshot_of(Plan(tree, value, value, optimum, optimal=True, fewest=True, explored=0, message=how))
