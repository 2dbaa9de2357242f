"""All that MFEC learns, as plain arrays for compiled code: made empty, prepared for a cycle, saved and restored; and
the schedule of a cycle: rates, exploration, the reward of a split."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from custard.core.features import Features
from custard.envs.pcg64 import streams, uniform
from custard.ibmdp.kernels import CompiledRules, compiled_rules
from custard.ibmdp.splits import Rules
from custard.solvers.common.bounds_survey import MAX_DECLARED_TO_SEEN_WIDTH
from custard.solvers.common.checkpoint import copy_arrays, restore_arrays
from custard.solvers.common.key_table import Keys, make_keys, restore_keys
from custard.solvers.mfec.bounds_table import BoundsTable, keep_most_visited_nodes, make_bounds_table
from custard.task.compiled_rollouts import tree_arrays
from custard.tree.tree import Tree

if TYPE_CHECKING:
    from custard.solvers.mfec.mfec import Settings

__all__ = [
    "CYCLE_KINDS", "CycleKind", "Episode", "Tables", "affordable_capacity", "begin_cycle", "grid_and_scale", "load",
    "make_tables", "save", "set_schedule",
]  # fmt: skip

MAX_STEPS_WITHOUT_CHANGE = 32  # base steps that leave every feature as it is, after which an episode is given up
MAX_VISITS_OF_KEPT_NODES = 1024  # visits that count when a cycle goes on with the nodes of the last one
MAX_TABLE_BYTES = 8 << 30  # of all tables; pages that are never written take no memory
MAX_OUTCOMES_PER_PAIR = 16  # the latest outcomes remembered for each base state and action
MAX_RECORDED_STEPS = 4096  # base steps after which an episode that still goes on is learned from
MAX_VISITS_OF_OTHER_BEHAVIOUR = 4  # that count, at most, of those in which the last cycle's behaviour was learned
ZETA_PER_REWARD = 0.01  # price of a split in units of the mean absolute reward
ZETA_PER_REWARD_WITH_DEPTH_LIMIT = 0.001  # the same under a depth limit, which keeps trees small by itself
# The schedule, in shares of a cycle.
FIRST_WARM_UP_CYCLE_SHARE, WARM_UP_CYCLE_SHARE = 0.2, 0.02  # in which only Q_o learns; the latter after cycle 0
TEACHER_END_CYCLE_SHARE = 0.6  # from here on episodes follow the tree alone, where there is no guide
SPLIT_PRICE_RISE_BEGIN, SPLIT_PRICE_RISE_END = 0.3, 0.6  # in between the reward of a split falls from 0 to zeta
RANDOM_SPLITS_FALL_END, RANDOM_SPLITS_FALL_LENGTH = 0.7, 0.6  # in which their share falls to epsilon
DEFAULT_EPSILON, DEFAULT_EPSILON_WITH_DEPTH_LIMIT = 0.1, 0.5  # without and with a depth limit
EPISODE_UNDECIDED, EPISODE_FOLLOWS_TREE, EPISODE_EXPLORES, EPISODE_DISCOVERS = -1, 0, 1, 2  # kinds of episode

SCHEDULE = np.dtype(
    [
        ("teacher_share", np.float64),  # of base steps that follow the guide, or else the best action, not the tree
        ("exploring_share", np.float64),  # of episodes that explore
        ("epsilon", np.float64),  # share of stretches of visits in which a node tries a random split
        ("zeta", np.float64),
        ("gamma_b", np.float64),
        ("trace", np.float64),  # lambda; 0: Q_o is computed from remembered outcomes
        ("kappa", np.float64),
        ("alpha_b", np.float64),
        ("alpha_o", np.float64),
        ("min_states_per_node", np.float64),  # states that a side of a split has seen before it becomes a node
        ("visits_per_random_split", np.int64),  # visits for which a node tries the same random split
        ("first_split", np.int64),  # the action that all descents of the cycle begin with; a base action: none
        ("learns_tree", np.bool_),
        ("learns_all_actions", np.bool_),
        ("has_guide", np.bool_),
    ],
    align=True,
)
COUNTERS = np.dtype(
    [
        ("recorded_steps", np.int64),  # of the present episode, not yet learned from
        ("episode", np.int64),  # number of the present episode
        ("episode_kind", np.int64),
        ("steps_without_change", np.int64),
        ("random_action_share", np.float64),  # of base steps in the present episode, if it explores
        ("episode_return", np.float64),
        ("base_actions", np.int64),  # in the whole run, with the sum of their absolute rewards
        ("absolute_rewards", np.float64),
        ("followed_episodes", np.int64),  # since the last snapshot, as all below: those that did not explore,
        ("followed_returns", np.float64),  # and the sum of their returns
        ("hits", np.int64),  # base states that were found
        ("misses", np.int64),  # base states that were new
        ("node_visits", np.int64),
    ]
)


class CycleKind(NamedTuple):
    """What cycles differ in, because neither choice serves everywhere.

    Remembered outcomes are exact where base states are told apart exactly, and always up to date; what really followed
    is right even where a grid cell hides what matters.
    """

    has_guide: bool  # follow the best tree so far, not the best known base action
    is_traced: bool  # learn Q_o from what really followed (lambda-returns), not from remembered outcomes


CYCLE_KINDS = (CycleKind(False, False), CycleKind(True, True), CycleKind(False, True), CycleKind(True, False))


class Episode(NamedTuple):
    """The recorded steps of the present episode, T = MAX_RECORDED_STEPS."""

    row: Any  # [T] int32: base states
    action: Any  # [T] int32: base actions taken
    tree_action: Any  # [T] int32: those of the tree that is learned
    guide_action: Any  # [T] int32: those of the guide, or -1 without a guide
    deviates: Any  # [T] bool: whether the action was taken only to explore
    reward: Any  # [T]


class Tables(NamedTuple):
    """All that is learned. n features, S base states, B base actions.

    What is known of base states has no tuple of its own, because compiled code would copy it at every use.
    """

    rules: CompiledRules
    bounds: BoundsTable  # Q(o, a): the policy over bounds
    episode: Episode
    state_keys: Keys  # base states on their grid, divided by the features' scales
    q_o: Any  # [S, B] Q_o(s_b, b): take b, then do as the behaviour that is learned about does
    q_star: Any  # [S, B] the same, but taking the best action afterwards
    v_o: Any  # [S] value of the behaviour
    v_star: Any  # [S] value of the best action
    mean_reward: Any  # [S, B]
    outcomes: Any  # [S, B, MAX_OUTCOMES_PER_PAIR] int32: the base states that followed (NONE: the episode's end)
    state_x: Any  # [S, n]: the exact features last observed in each base state
    state_step: Any  # [S] int32: the step of its episode at which each was last met
    state_episode: Any  # [S] int64: the last episode each was met in
    tries: Any  # [S, B] int32: how often each base action was taken
    updates: Any  # [S, B] int32: how often it was learned from
    cycle_updates: Any  # [S, B] int32: visits that count for the learning rate of q_o in this cycle
    guide: tuple[np.ndarray, ...]  # the best tree when the cycle began, as `leaf_of` reads it
    grid: Any  # [2, n]: origin and width of the cells that tell real features apart (width 0: told apart exactly)
    scale: Any  # [n]: what features are divided by for distances between base states
    priority: Any  # [B]: which of equally good base actions is preferred, drawn anew in each cycle
    moments: Any  # [3, n]: count, sum and sum of squares of the base states the tree was learned in
    last_x: Any  # [n]: the last base state
    key: Any  # [n]: scratch space for a key
    schedule: Any  # [1] SCHEDULE
    counters: Any  # [1] COUNTERS
    rng: Any  # [4] uint64


def grid_and_scale(widest: Features, seen: Features, width: np.ndarray, cells: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the grid [2, n] and the scale [n] by which base states are told apart, see `Tables`.

    widest, seen: the features with the widest bounds, and with the range seen in random rollouts
    width [n]: of the bounds
    cells: of the grid, about

    Real features have a grid over where they were seen (over the declared range, if that is of the same order: random
    actions may see little of it); whole numbers are told apart exactly.
    """
    real, declared = ~widest.integer, widest.high - widest.low
    span = np.where(seen.high > seen.low, seen.high - seen.low, 1.0)
    span = np.where((declared > span) & (declared <= MAX_DECLARED_TO_SEEN_WIDTH * span), declared, span)
    cell_width = span / max(16.0, np.ceil(cells ** (1.0 / max(1, real.sum()))))
    return np.where(real, np.stack([seen.low, cell_width]), 0.0), np.where(real, span, width)


def make_tables(rules: Rules, grid: np.ndarray, scale: np.ndarray, capacity: int, seed: int) -> Tables:
    """Return empty tables.

    rules: of the IBMDP
    grid [2, n], scale [n]: how base states are told apart and compared, see `Tables`
    capacity: nodes, and base states, at most
    seed: of the learner's random numbers
    """
    n, base = rules.features.n, rules.n_base
    rows, actions, tree_actions, guide_actions = np.zeros((4, MAX_RECORDED_STEPS), dtype=np.int32)
    deviates, rewards = np.zeros(MAX_RECORDED_STEPS, dtype=np.bool_), np.zeros(MAX_RECORDED_STEPS)
    tables = Tables(
        rules=compiled_rules(rules),
        bounds=make_bounds_table(capacity, rules),
        episode=Episode(rows, actions, tree_actions, guide_actions, deviates, rewards),
        state_keys=make_keys(capacity, n, neighbours=True),
        q_o=np.zeros((capacity, base)),
        q_star=np.zeros((capacity, base)),
        v_o=np.zeros(capacity),
        v_star=np.zeros(capacity),
        mean_reward=np.zeros((capacity, base)),
        outcomes=np.zeros((capacity, base, MAX_OUTCOMES_PER_PAIR), dtype=np.int32),
        state_x=np.zeros((capacity, n)),
        state_step=np.zeros(capacity, dtype=np.int32),
        state_episode=np.full(capacity, -1, dtype=np.int64),
        tries=np.zeros((capacity, base), dtype=np.int32),
        updates=np.zeros((capacity, base), dtype=np.int32),
        cycle_updates=np.zeros((capacity, base), dtype=np.int32),
        guide=tree_arrays(Tree.leaf(rules.actions.start, rules.features, rules.actions)),
        grid=grid,
        scale=scale,
        priority=np.zeros(base),
        moments=np.zeros((3, n)),
        last_x=np.zeros(n),
        key=np.zeros(n),
        schedule=np.zeros(1, dtype=SCHEDULE).view(np.recarray),
        counters=np.zeros(1, dtype=COUNTERS).view(np.recarray),
        rng=streams([seed])[0],
    )
    tables.counters[0].episode_kind = EPISODE_UNDECIDED
    return tables


def affordable_capacity(rules: Rules, capacity: int) -> int:
    """Return how many nodes and base states fit into `MAX_TABLE_BYTES`, at most `capacity`.

    rules: of the IBMDP; a row of the tables takes more memory the more actions, features and splits there are
    """
    tables = make_tables(rules, np.zeros((2, rules.features.n)), np.ones(rules.features.n), 16, 0)
    rows = [array for array in (*tables, *tables.bounds) if isinstance(array, np.ndarray) and len(array) == 16]
    return min(capacity, MAX_TABLE_BYTES // max(1, sum(array[0].nbytes for array in rows)))


def begin_cycle(tables: Tables, rules: Rules, guide: Tree | None) -> Tables:
    """Forget the tree, keep what is known of base states. With a guide its actions are followed.

    Under a depth limit half of the nodes are kept while the bounds stay: thresholds are many then, and one cycle is
    too short to try them all.
    """
    bounds, new_rules = tables.bounds, compiled_rules(rules)
    same_bounds = all(np.array_equal(getattr(tables.rules, name), getattr(new_rules, name)) for name in ("low", "high"))
    max_nodes = len(bounds.visits) // 2 if new_rules.has_depth_limit and same_bounds else 0
    keep_most_visited_nodes(bounds, max_nodes, MAX_VISITS_OF_KEPT_NODES)
    tables.moments[:] = 0.0
    size = int(tables.state_keys.size[0])
    tables.schedule[0].has_guide = guide is not None
    if guide is None:
        known = tables.updates[:size] > 0
        tables.q_o[:size][known] = tables.q_star[:size][known]
        tables.cycle_updates[:size] = tables.updates[:size]
    else:
        tables.cycle_updates[:size] = np.minimum(tables.cycle_updates[:size], MAX_VISITS_OF_OTHER_BEHAVIOUR)
    for b in range(len(tables.priority)):
        tables.priority[b] = uniform(tables.rng, 0.0, 1.0)
    tables = tables._replace(rules=new_rules)
    return tables if guide is None else tables._replace(guide=tree_arrays(guide))


# -- the schedule of a cycle ------------------------------------------------------------------------------------------


def set_schedule(tables: Tables, s: Settings, tau: float, cycle: int, kind: CycleKind, gamma_b: float) -> None:
    """Set rates, exploration and the reward of a split at a moment of a cycle.

    tables: changed in place
    s: the method's settings
    tau: share of the cycle that is over
    cycle, kind: the cycle's number and kind
    gamma_b: discount of a base action

    At first the teacher (the guide, or else the best known action) is followed, then more and more the tree itself.
    Splits are free at first, so that a tree can grow whose parts pay only together; then their price rises to zeta.
    """
    schedule = tables.schedule[0]
    warm_up = FIRST_WARM_UP_CYCLE_SHARE if cycle == 0 else WARM_UP_CYCLE_SHARE
    schedule.learns_tree = tau >= warm_up
    schedule.exploring_share = s.exploring_share if tau >= warm_up else 1.0
    schedule.teacher_share = (
        1.0 if schedule.has_guide else _clipped((TEACHER_END_CYCLE_SHARE - tau) / (TEACHER_END_CYCLE_SHARE - warm_up))
    )
    schedule.zeta = split_reward(tables, s.zeta) * _clipped(
        (tau - SPLIT_PRICE_RISE_BEGIN) / (SPLIT_PRICE_RISE_END - SPLIT_PRICE_RISE_BEGIN)
    )
    default_epsilon = DEFAULT_EPSILON_WITH_DEPTH_LIMIT if tables.rules.has_depth_limit else DEFAULT_EPSILON
    last_epsilon = default_epsilon if s.epsilon is None else s.epsilon
    schedule.epsilon = last_epsilon + (1.0 - last_epsilon) * _clipped(
        (RANDOM_SPLITS_FALL_END - tau) / RANDOM_SPLITS_FALL_LENGTH
    )
    schedule.kappa, schedule.alpha_b, schedule.alpha_o = s.kappa, s.alpha_b, s.alpha_o
    schedule.min_states_per_node, schedule.visits_per_random_split = s.min_states_per_node, s.visits_per_random_split
    schedule.gamma_b = gamma_b
    schedule.learns_all_actions = s.all_actions
    schedule.trace = s.trace if kind.is_traced or not s.remember_outcomes else 0.0


def _clipped(share: float) -> float:
    return min(1.0, max(0.0, share))


def split_reward(tables: Tables, zeta: float | None) -> float:
    """Return the reward of a split: as set, or minus a hundredth of the mean absolute reward of a base action.

    Under a depth limit, which keeps trees small by itself, it is a tenth of that.
    """
    if zeta is not None:
        return zeta
    counters = tables.counters[0]
    mean_reward = float(counters.absolute_rewards / max(1, counters.base_actions))
    return -(ZETA_PER_REWARD_WITH_DEPTH_LIMIT if tables.rules.has_depth_limit else ZETA_PER_REWARD) * mean_reward


# -- checkpoints ----------------------------------------------------------------------------------------------------

_STATE_ROWS = (
    "q_o", "q_star", "v_o", "v_star", "mean_reward", "outcomes", "state_x", "state_step", "state_episode", "tries",
    "updates", "cycle_updates",
)  # fmt: skip
_NODE_ROWS = tuple(name for name in BoundsTable._fields if name != "keys")
_WHOLE_ARRAYS = ("grid", "scale", "priority", "moments", "last_x", "schedule", "counters", "rng")


def _checkpoint_arrays(tables: Tables) -> dict[str, np.ndarray]:
    """Return the very arrays that a checkpoint keeps, those of rows up to the rows in use."""
    nodes, states = int(tables.bounds.keys.size[0]), int(tables.state_keys.size[0])
    parts = {f"tables.{name}": getattr(tables, name) for name in _WHOLE_ARRAYS}
    parts |= {f"episode.{name}": getattr(tables.episode, name) for name in Episode._fields}
    parts |= {f"states.{name}": getattr(tables, name)[:states] for name in _STATE_ROWS}
    return parts | {f"bounds.{name}": getattr(tables.bounds, name)[:nodes] for name in _NODE_ROWS}


def save(tables: Tables) -> dict[str, np.ndarray]:
    """Return copies of the parts in use, by name."""
    data = copy_arrays(_checkpoint_arrays(tables))
    for name, keys in (("bounds", tables.bounds.keys), ("states", tables.state_keys)):
        data[f"{name}.keys"] = keys.key[: int(keys.size[0])].copy()
    return data | {f"guide.{i}": array.copy() for i, array in enumerate(tables.guide)}


def load(tables: Tables, data: dict[str, np.ndarray]) -> Tables:
    """Return empty tables filled with what `save` returned."""
    restore_keys(tables.bounds.keys, data["bounds.keys"])
    restore_keys(tables.state_keys, data["states.keys"])
    restore_arrays(_checkpoint_arrays(tables), data)
    guide = tuple(data[f"guide.{i}"].copy() for i in range(len(tables.guide)))
    for array, like in zip(guide, tables.guide, strict=True):
        array.flags.writeable = like.flags.writeable  # part of the type that compiled code was made for
    return tables._replace(guide=guide)
