"""The thirteen models that the literature on optimal decision-tree policies compares on, as finite MDPs.

Vos and Verwer ("Optimal decision tree policies for Markov decision processes", IJCAI 2023) define them; these are
generators of our own after those definitions, discounted by 0.99 as there. `MODELS` names each one's function.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from custard.core.actions import Actions
from custard.core.features import INTEGER, Features
from custard.core.mdp import FiniteMDP

__all__ = ["GAMMA", "MODELS", "random_return"]

GAMMA = 0.99

Entry = tuple[int, int, int, float]  # action, state, next state, probability


def model(
    entries: Iterable[Entry] | np.ndarray,
    rewards: np.ndarray,
    x: np.ndarray,
    start: np.ndarray,
    features: Sequence[str],
    actions: Sequence[str],
    terminal: Sequence[int] = (),
) -> FiniteMDP:
    """Return the finite MDP; rows of terminal states are added."""
    x, count = np.asarray(x, dtype=np.float64), len(x)
    ends = np.zeros(count, dtype=bool)
    ends[list(terminal)] = True
    loops = [(a, s, s, 1.0) for a in range(len(actions)) for s in terminal]
    rows = np.asarray(entries if isinstance(entries, np.ndarray) else list(entries), dtype=np.float64).reshape(-1, 4)
    if loops:
        rows = np.concatenate([rows, np.array(loops)])
    described = Features(tuple(features), x.min(axis=0), x.max(axis=0), (INTEGER,) * x.shape[1])
    return FiniteMDP.from_entries(
        rows, rewards, terminal=ends, start=start, gamma=GAMMA, x=x, features=described,
        actions=Actions("discrete", tuple(actions)),
    )  # fmt: skip


def at(count: int, state: int) -> np.ndarray:
    """Return the start distribution that always begins in one state."""
    start = np.zeros(count)
    start[state] = 1.0
    return start


def xor() -> FiniteMDP:
    """200 random points of the plane, drawn anew at each step; the better action is the exclusive or of their signs."""
    count = 200
    x = np.random.RandomState(0).randint(-100, 100, size=(count, 2))
    differs = (x[:, 0] >= 0) != (x[:, 1] >= 0)
    reward = np.where(differs, 1.0, -1.0)
    s, t = (part.ravel() for part in np.meshgrid(np.arange(count), np.arange(count), indexing="ij"))
    rows = np.concatenate([np.stack([np.full(count**2, a), s, t, np.full(count**2, 1 / count)], 1) for a in (0, 1)])
    return model(rows, np.stack([-reward, reward], 1), x, np.full(count, 1 / count), ("X", "Y"), ("not_xor", "xor"))


CARDS = (2, 3, 4, 5, 6, 7, 8, 9, 10, 10, 10, 10, 11)
BUST = 22  # the largest total that is kept: every higher one is as lost


def blackjack() -> FiniteMDP:
    """Draw or stand until the dealer has 17, then the next game: 1 for a win, 1.5 with 21, -1 for a loss or a tie."""
    states = [(0, 0, 0), *itertools.product((0, 1), range(4, BUST + 1), range(2, BUST + 1))]
    number = {state: k for k, state in enumerate(states)}

    def is_over(stood: int, player: int, dealer: int) -> bool:
        return player >= BUST or (stood == 1 and dealer >= 17)

    def result(player: int, dealer: int) -> float:
        if player >= BUST or player <= dealer < BUST:
            return -1.0
        return 1.5 if player == 21 and dealer < 21 else 1.0

    entries: list[Entry] = []
    rewards = np.zeros((len(states), 2))
    for s, (stood, player, dealer) in enumerate(states):
        for a in (0, 1):
            if s == 0:
                for first, second, third in itertools.product(CARDS, repeat=3):
                    entries.append((a, s, number[0, min(first + second, BUST), third], len(CARDS) ** -3))
            elif is_over(stood, player, dealer):
                entries.append((a, s, 0, 1.0))
                rewards[s, a] = result(player, dealer)
            elif a == 1 and not stood:
                entries += [(a, s, number[0, min(player + card, BUST), dealer], 1 / len(CARDS)) for card in CARDS]
            elif dealer >= 17:
                entries.append((a, s, number[1, player, dealer], 1.0))
            else:
                entries += [(a, s, number[1, player, min(dealer + card, BUST)], 1 / len(CARDS)) for card in CARDS]
    names = ("skipped", "player_total", "dealer_total")
    return model(entries, rewards, np.array(states), at(len(states), 0), names, ("skip", "draw"))


def navigation_3d(size: int = 5) -> FiniteMDP:
    """Walk from one corner of a cube to the opposite one; each cell sends the robot back at its own rate."""
    cells = list(itertools.product(range(size), repeat=3))
    number = {cell: k for k, cell in enumerate(cells)}
    goal = len(cells) - 1
    rng = np.random.RandomState(0)
    moves = [(axis, step) for axis in range(3) for step in (1, -1)]
    entries: list[Entry] = []
    rewards = np.zeros((len(cells), len(moves)))
    for s, cell in enumerate(cells[:-1]):
        lost = 0.0 if s == 0 else rng.rand()
        for a, (axis, step) in enumerate(moves):
            there = list(cell)
            there[axis] = min(max(there[axis] + step, 0), size - 1)
            after = number[there[0], there[1], there[2]]
            entries += [(a, s, after, 1.0 - lost), (a, s, 0, lost)]
            rewards[s, a] = (1.0 - lost) * (after == goal)
    entries += [(a, goal, 0, 1.0) for a in range(len(moves))]
    actions = ("right", "left", "up", "down", "forward", "backward")
    return model(entries, rewards, np.array(cells), at(len(cells), 0), ("x", "y", "z"), actions)


LAKE_4 = (4, 15, (5, 7, 11, 12))
LAKE_8 = (8, 63, (19, 29, 35, 41, 42, 46, 49, 52, 54, 59))
LAKE_12 = (12, 126, (27, 35, 41, 51, 61, 62, 66, 69, 73, 76, 78, 87, 104, 108, 113, 118, 119))


def frozen_lake(size: int, goal: int, holes: Sequence[int]) -> FiniteMDP:
    """Slip over ice: the move, or one to either side of it, each with a third."""
    moves = ((0, -1), (1, 0), (0, 1), (-1, 0))  # left, down, right, up as (row, column)
    ends = (goal, *holes)
    entries: list[Entry] = []
    rewards = np.zeros((size * size, 4))
    for s in range(size * size):
        if s in ends:
            continue
        for a in range(4):
            for slipped in ((a - 1) % 4, a, (a + 1) % 4):
                row = min(max(s // size + moves[slipped][0], 0), size - 1)
                column = min(max(s % size + moves[slipped][1], 0), size - 1)
                after = row * size + column
                entries.append((a, s, after, 1 / 3))
                rewards[s, a] += (after == goal) / 3
    x = np.array([(s % size, s // size) for s in range(size * size)])
    return model(entries, rewards, x, at(size * size, 0), ("X", "Y"), ("left", "down", "right", "up"), ends)


def poisson(mean: float, count: int) -> np.ndarray:
    """Return the probabilities of 0…count-1 events."""
    return np.array([math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(count)])


def inventory(size: int = 100, order: float = 10, unit: float = 2, holding: float = 1, price: float = 4) -> FiniteMDP:
    """Order 0…99 units a day before a Poisson(15) demand.

    The suite stores each outcome's reward times its probability and weighs it by the probability once more; so do we,
    since its published returns come from that.
    """
    demand = poisson(15, 75)
    stock, buy, wanted = np.meshgrid(np.arange(size + 1), np.arange(size), np.arange(len(demand)), indexing="ij")
    full = np.minimum(stock + buy, size)
    after = np.maximum(full - wanted, 0)
    earned = price * (full - after) - np.where(buy > 0, order + unit * buy, 0) - holding * stock
    cell = (stock, buy, after)
    chance, reward = np.zeros((size + 1, size, size + 1)), np.zeros((size + 1, size, size + 1))
    weight = np.broadcast_to(demand, stock.shape)
    np.add.at(chance, cell, weight)
    np.add.at(reward, cell, weight * earned)
    chance /= chance.sum(axis=2, keepdims=True)
    s, a, t = np.nonzero(chance)
    rows = np.stack([a, s, t, chance[s, a, t]], axis=1)
    names = ("don't buy", *(f"buy {k}" for k in range(1, size)))
    x = np.arange(size + 1).reshape(-1, 1)
    return model(rows, (chance * reward).sum(axis=2), x, at(size + 1, 0), ("inventory",), names)


def traffic(most: int = 5) -> FiniteMDP:
    """Switch a traffic light or wait; cars come at rates 0.1 and 0.5, and waiting ones cost twice as much each step."""
    states = list(itertools.product((0, 1), range(most + 1), range(most + 1), range(most + 1)))
    number = {state: k for k, state in enumerate(states)}
    left_arrivals, right_arrivals = poisson(0.1, most + 2), poisson(0.5, most + 2)
    entries: list[Entry] = []
    rewards = np.zeros((len(states), 2))
    for s, (green, left, right, waited) in enumerate(states):
        waiting, moving = (right, left) if green == 0 else (left, right)
        rewards[s] = (moving > 0) - waiting * 0.1 * 2**waited - np.array([2.0, 0.0])
        low_left, low_right = left - (green == 0 and left > 0), right - (green == 1 and right > 0)
        chance = np.outer(left_arrivals[: most + 1 - low_left], right_arrivals[: most + 1 - low_right])
        chance /= chance.sum()
        for a, (light, clock) in enumerate(((1 - green, 1), (green, min(waited + 1, most)))):
            for (i, j), p in np.ndenumerate(chance):
                entries.append((a, s, number[light, low_left + i, low_right + j, clock], p))
    names = ("green_side", "cars_left", "cars_right", "waiting_time")
    return model(entries, rewards, np.array(states), at(len(states), 0), names, ("switch_light", "wait"))


NETWORK_1 = ((2, 6), (0,), (0, 4), (2, 6), (5,), (1, 6, 7), (4,), (0,))
NETWORK_2 = ((3, 6, 7), (0, 1, 2, 4), (1, 2, 6, 7), (1, 2), (1, 2, 3, 4), (1, 4), (4, 5, 7), (3, 4, 5))
NETWORK_TREE = ((), (0,), (0,), (1,), (1,), (2,), (2,))


def sysadmin(network: Sequence[Sequence[int]]) -> FiniteMDP:
    """Reboot a computer (0.45) or wait; one that runs goes on by 0.95 times the share of its sources that run."""
    n = len(network)
    states = np.array(list(itertools.product((0, 1), repeat=n)))
    runs_on = np.empty(states.shape)
    for i, sources in enumerate(network):
        share = states[:, list(sources)].mean(axis=1) if sources else 1.0
        runs_on[:, i] = (0.05 + 0.9 * states[:, i]) * share
    parts = []
    for a in range(n + 1):
        on = runs_on.copy()
        if a < n:
            on[:, a] = 1.0
        chance = np.prod(np.where(states[None, :, :] == 1, on[:, None, :], 1.0 - on[:, None, :]), axis=2)
        s, t = np.nonzero(chance)
        parts.append(np.stack([np.full(len(s), a), s, t, chance[s, t]], axis=1))
    rewards = states.sum(axis=1)[:, None] - np.where(np.arange(n + 1) < n, 0.45, 0.0)
    features = [f"computer_{i}_running" for i in range(n)]
    actions = [f"reboot_computer_{i}" for i in range(n)] + ["wait"]
    return model(np.concatenate(parts), rewards, states, at(len(states), len(states) - 1), features, actions)


def tiger_vs_antelope(size: int = 5) -> FiniteMDP:
    """Catch an antelope that moves at random but never into the tiger; every position is a start."""
    states = list(itertools.product(range(size), repeat=4))  # antelope x, y, tiger x, y
    number = {state: k for k, state in enumerate(states)}
    caught = len(states)
    steps = ((0, 1), (1, 0), (0, -1), (-1, 0), (0, 0))  # up, right, down, left, wait
    entries: list[Entry] = []
    rewards = np.zeros((len(states) + 1, 5))
    for s, (ax, ay, tx, ty) in enumerate(states):
        if (ax, ay) == (tx, ty):
            entries += [(a, s, caught, 1.0) for a in range(5)]
            rewards[s] = 1.0
            continue
        around = [(ax + dx, ay + dy) for dx, dy in steps[:4]]
        around = [(x, y) for x, y in around if 0 <= x < size and 0 <= y < size and (x, y) != (tx, ty)]
        for a, (dx, dy) in enumerate(steps):
            there = (min(max(tx + dx, 0), size - 1), min(max(ty + dy, 0), size - 1))
            entries += [(a, s, number[*place, *there], 1 / len(around)) for place in around]
    x = np.array([*states, (-1, -1, -1, -1)])
    names, actions = ("antelope_x", "antelope_y", "tiger_x", "tiger_y"), ("up", "right", "down", "left", "wait")
    start = np.full(len(x), 1 / len(x))
    return model(entries, rewards, x, start, names, actions, [caught])


LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
PLACES = ("top_left", "top_center", "top_right", "center_left", "center", "center_right",
          "bottom_left", "bottom_center", "bottom_right")  # fmt: skip


def tictactoe_vs_random() -> FiniteMDP:
    """Play crosses against random circles: 1 for a win, -1 for a loss or a square that is taken."""

    def wins(board: tuple[int, ...], player: int) -> bool:
        return any(all(board[k] == player for k in line) for line in LINES)

    def placed(board: tuple[int, ...], k: int, player: int) -> tuple[int, ...]:
        return (*board[:k], player, *board[k + 1 :])

    empty = (0,) * 9
    number = {empty: 0}
    boards, done = [empty], 0
    outcomes: list[tuple[int, int, tuple[int, ...] | None, float]] = []  # action, state, board, probability
    rewards: dict[tuple[int, int], float] = {}
    while done < len(boards):
        board = boards[done]
        for k in range(9):
            after = placed(board, k, 1)
            if board[k] != 0 or wins(after, 1) or 0 not in after:
                outcomes.append((k, done, None, 1.0))
                rewards[done, k] = -1.0 if board[k] != 0 else float(wins(after, 1))
                continue
            free = [j for j in range(9) if after[j] == 0]
            for j in free:
                answer = placed(after, j, 2)
                lost = wins(answer, 2)
                if lost:
                    rewards[done, k] = rewards.get((done, k), 0.0) - 1 / len(free)
                elif answer not in number:
                    number[answer] = len(boards)
                    boards.append(answer)
                outcomes.append((k, done, None if lost else answer, 1 / len(free)))
        done += 1
    end = len(boards)
    entries = [(k, s, end if board is None else number[board], p) for k, s, board, p in outcomes]
    table = np.zeros((end + 1, 9))
    for (s, k), reward in rewards.items():
        table[s, k] = reward
    x = np.full((end + 1, 27), -1)
    for s, board in enumerate(boards):
        x[s] = [int(value == kind) for value in board for kind in (0, 1, 2)]
    names = [f"{place}_{kind}" for place in PLACES for kind in ("free", "cross", "circle")]
    return model(entries, table, x, at(end + 1, 0), names, PLACES, [end])


MODELS: dict[str, Callable[[], FiniteMDP]] = {
    "xor": xor,
    "blackjack": blackjack,
    "3d_navigation": navigation_3d,
    "frozenlake_4x4": lambda: frozen_lake(*LAKE_4),
    "frozenlake_8x8": lambda: frozen_lake(*LAKE_8),
    "frozenlake_12x12": lambda: frozen_lake(*LAKE_12),
    "inventory": inventory,
    "traffic": traffic,
    "sysadmin_1": lambda: sysadmin(NETWORK_1),
    "sysadmin_2": lambda: sysadmin(NETWORK_2),
    "sysadmin_tree": lambda: sysadmin(NETWORK_TREE),
    "tiger_vs_antelope": tiger_vs_antelope,
    "tictactoe_vs_random": tictactoe_vs_random,
}


def random_return(mdp: FiniteMDP) -> float:
    """Return what uniformly random actions return."""
    mean = sum(mdp.transitions[1:], mdp.transitions[0]) / mdp.actions.n
    reward = np.where(mdp.terminal, 0.0, mdp.rewards.mean(axis=1))
    alive = (~mdp.terminal).astype(float)
    values = np.linalg.solve(np.eye(mdp.n_states) - mdp.gamma * alive[:, None] * mean.toarray(), reward)
    return float(mdp.start @ values)
