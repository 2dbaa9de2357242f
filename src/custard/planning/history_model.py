"""The exact model of an environment whose past observations and actions are features: a state remembers them."""

from __future__ import annotations

from collections import deque

import numpy as np

from custard.core.errors import CustardError
from custard.core.history import first_action, history_features
from custard.core.mdp import FiniteMDP

__all__ = ["MAX_HISTORY_STATES", "remembering_model"]

MAX_HISTORY_STATES = 200_000  # states with their past that are enumerated

State = tuple[int, tuple[tuple[int, int], ...]]  # a base state; per step back, what was seen (by number) and done


def remembering_model(mdp: FiniteMDP, steps: int) -> FiniteMDP:
    """Return the finite MDP whose states are those of another with the last steps, as far as they can be reached.

    The feature vectors are those of `custard.core.history`. A terminal state is one state, whatever led to it.
    """
    seen, number = np.unique(mdp.x[:, : mdp.features.n_raw], axis=0, return_inverse=True)
    number = number.reshape(-1)
    index: dict[State, int] = {}
    queue: deque[State] = deque()

    def index_of(state: int, past: tuple[tuple[int, int], ...]) -> int:
        key = (state, ((int(number[state]), 0),) * steps if mdp.terminal[state] else past)
        if key not in index:
            if len(index) >= MAX_HISTORY_STATES:
                raise CustardError(
                    f"the exact model with history={steps} has more than {MAX_HISTORY_STATES:,} states: remember fewer "
                    "steps"
                )
            index[key] = len(index)
            queue.append(key)
        return index[key]

    begun = [(index_of(int(s), ((int(number[s]), 0),) * steps), mdp.start[s]) for s in np.flatnonzero(mdp.start)]
    entries: list[tuple[int, int, int, float]] = []
    while queue:
        state, past = queue.popleft()
        here = index[state, past]
        for action, matrix in enumerate(mdp.transitions):
            if mdp.terminal[state]:
                entries.append((action, here, here, 1.0))
                continue
            row = slice(matrix.indptr[state], matrix.indptr[state + 1])
            after = ((int(number[state]), action), *past[:-1])
            for next_state, probability in zip(matrix.indices[row].tolist(), matrix.data[row].tolist(), strict=True):
                entries.append((action, here, index_of(next_state, after), probability))
    states = np.array([state for state, _ in index])
    start = np.zeros(len(index))
    for k, probability in begun:
        start[k] += probability
    first = float(first_action(mdp.actions)[0])
    x = np.array([
        [*seen[number[state]], *(value for what, done in past for value in (*seen[what], first + done))]
        for state, past in index
    ])  # fmt: skip
    return FiniteMDP.from_entries(
        np.array(entries), mdp.rewards[states], terminal=mdp.terminal[states], start=start, gamma=mdp.gamma, x=x,
        features=history_features(mdp.features.raw, mdp.actions, steps), actions=mdp.actions, horizon=mdp.horizon,
    )  # fmt: skip
