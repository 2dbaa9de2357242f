"""Finite MDPs as files: JSON to write by hand, npz for large ones. No pickle.

    {"format": "custard-mdp", "version": 1, "gamma": 1.0, "horizon": null,
     "features": [{"name": "x", "kind": "integer", "low": 0, "high": 2}],
     "actions": {"kind": "discrete", "names": ["left", "right"]},
     "x": [[0], [1], [2]],                        one row of feature values per state
     "start": [1, 0, 0],                          sums to one
     "terminal": [2],                             state numbers; their own transitions may be left out
     "transitions": [[0, 0, 0, 1.0], …],          action, state, next state, probability
     "rewards": [[-1, -1], [-1, -1], [0, 0]]}     one row per state, one column per action

The npz holds the same names: `x`, `start`, `terminal` (numbers), `transitions` [E, 4], `rewards`, and `head`, the JSON
text of the rest.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from custard.core.actions import Actions
from custard.core.errors import CustardError
from custard.core.features import Features
from custard.core.files import load_arrays, write_atomically
from custard.core.mdp import FiniteMDP
from custard.planning.solve import can_end

__all__ = ["from_json", "load", "save", "to_json"]

FORMAT, VERSION = "custard-mdp", 1
ARRAYS = ("x", "start", "terminal", "transitions", "rewards")


def to_json(mdp: FiniteMDP) -> dict[str, Any]:
    """Return a finite MDP as plain data."""
    head, arrays = _head_and_arrays(mdp)
    rows = [[int(a), int(s), int(t), float(p)] for a, s, t, p in arrays["transitions"]]
    return {**head, **{name: arrays[name].tolist() for name in ARRAYS if name != "transitions"}, "transitions": rows}


def from_json(data: Any) -> FiniteMDP:
    """Return a finite MDP from plain data, checked."""
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise CustardError(f'not a custard MDP: the JSON object lacks "format": "{FORMAT}"')
    if not isinstance(data.get("version"), int) or data["version"] > VERSION:
        raise CustardError(f"the MDP has version {data.get('version')!r}, this custard reads up to {VERSION}")
    missing = [name for name in (*ARRAYS, "features", "actions") if name not in data]
    if missing:
        raise CustardError(f"the MDP lacks {', '.join(missing)}")
    arrays: dict[str, np.ndarray] = {}
    for name in ARRAYS:
        try:
            arrays[name] = np.array(data[name], dtype=np.float64)
        except (TypeError, ValueError):
            raise CustardError(f"the MDP's {name} must be numbers, in rows of equal length") from None
    features = Features.from_json(data["features"])
    actions = Actions.from_json(data["actions"])
    _check_shapes(arrays, features, actions)
    count, n_actions = arrays["rewards"].shape
    terminal = np.zeros(count, dtype=bool)
    terminal[arrays["terminal"].astype(np.int64).reshape(-1)] = True
    entries = _with_loops(arrays["transitions"].reshape(-1, 4), terminal, n_actions)
    gamma = data.get("gamma", 1.0)
    if not isinstance(gamma, (int, float)) or isinstance(gamma, bool):
        raise CustardError(f"gamma={gamma!r} must be a number in [0, 1]")
    horizon = data.get("horizon")
    if horizon is not None and (not isinstance(horizon, int) or isinstance(horizon, bool)):
        raise CustardError(f"horizon={horizon!r} must be a whole number of at least 1, or null")
    bad = np.flatnonzero(terminal & (arrays["rewards"] != 0).any(axis=1))
    if len(bad):
        raise CustardError(f"state {bad[0]} is terminal but has rewards: give the reward to the step that enters it")
    mdp = FiniteMDP.from_entries(
        entries, arrays["rewards"], terminal=terminal, start=arrays["start"], gamma=float(gamma), x=arrays["x"],
        features=features, actions=actions, horizon=horizon,
    )  # fmt: skip
    _check_ends(mdp)
    return mdp


def save(mdp: FiniteMDP, path: str | Path) -> None:
    """Write a finite MDP; the name's ending (.json or .npz) chooses the form."""
    path = Path(path)
    if path.suffix == ".json":
        write_atomically(path, json.dumps(to_json(mdp), allow_nan=False) + "\n")
    elif path.suffix == ".npz":
        head, arrays = _head_and_arrays(mdp)
        buffer = io.BytesIO()
        np.savez_compressed(buffer, head=np.array(json.dumps(head)), **arrays)  # type: ignore[arg-type]
        write_atomically(path, buffer.getvalue())
    else:
        raise CustardError(f"an MDP's file name ends in .json or .npz, not {path.suffix!r}")


def load(path: str | Path) -> FiniteMDP:
    """Read a finite MDP that `save` wrote, or one written by hand."""
    path = Path(path)
    if path.suffix not in (".json", ".npz"):
        raise CustardError(f"an MDP's file name ends in .json or .npz, not {path.suffix!r}")
    try:
        if path.suffix == ".json":
            data = json.loads(path.read_text(encoding="utf-8"))
        else:
            stored = load_arrays(path)
            data = {**json.loads(str(stored["head"])), **{name: stored[name] for name in ARRAYS}}
    except OSError as error:
        raise CustardError(f"cannot read {path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CustardError(f"{path} cannot be read as an MDP ({error})") from None
    try:
        return from_json(data)
    except CustardError as error:
        raise CustardError(f"{path}: {error}") from None


def _head_and_arrays(mdp: FiniteMDP) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return what the JSON text of a file holds, and its arrays."""
    head = {
        "format": FORMAT, "version": VERSION, "gamma": mdp.gamma, "horizon": mdp.horizon,
        "features": mdp.features.to_json(), "actions": mdp.actions.to_json(),
    }  # fmt: skip
    rows = []
    for action, matrix in enumerate(mdp.transitions):
        cells = sparse.coo_array(matrix)
        source, target = cells.coords
        keep = ~mdp.terminal[source]
        rows.append(np.stack([np.full(keep.sum(), action), source[keep], target[keep], cells.data[keep]], axis=1))
    arrays = {
        "x": mdp.x, "start": mdp.start, "terminal": np.flatnonzero(mdp.terminal),
        "transitions": np.concatenate(rows), "rewards": mdp.rewards,
    }  # fmt: skip
    return head, arrays


def _check_shapes(arrays: dict[str, np.ndarray], features: Features, actions: Actions) -> None:
    """Raise unless the arrays fit each other, the features and the actions."""
    if arrays["rewards"].ndim != 2 or arrays["rewards"].shape[1] != actions.n:
        raise CustardError(f"the MDP's rewards need one row a state and {actions.n} columns, one an action")
    count = len(arrays["rewards"])
    if arrays["x"].shape != (count, features.n):
        raise CustardError(f"the MDP's x is {arrays['x'].shape}, but there are {count} states × {features.n} features")
    if arrays["start"].shape != (count,):
        raise CustardError(f"the MDP's start needs one entry for each of the {count} states")
    if arrays["transitions"].size and (arrays["transitions"].ndim != 2 or arrays["transitions"].shape[1] != 4):
        raise CustardError("the MDP's transitions need rows of action, state, next state, probability")
    numbers = arrays["transitions"].reshape(-1, 4)[:, :3]
    limits = np.array([actions.n, count, count])
    for what, given, limit in (("terminal", arrays["terminal"].reshape(-1, 1), np.array([count])),
                               ("transitions", numbers, limits)):  # fmt: skip
        wrong = ~((given >= 0) & (given < limit) & (given == np.floor(given)))
        if wrong.any():
            row = int(np.flatnonzero(wrong.any(axis=1))[0])
            raise CustardError(f"row {row} of the MDP's {what} names an action or state that does not exist")


def _with_loops(entries: np.ndarray, terminal: np.ndarray, n_actions: int) -> np.ndarray:
    """Return the transitions with self-loops at terminal states, which a file may leave out."""
    source, target = entries[:, 1].astype(np.int64), entries[:, 2].astype(np.int64)
    out = terminal[source] & (source != target) & (entries[:, 3] != 0)
    if out.any():
        raise CustardError(f"state {source[out][0]} is terminal but has a transition to state {target[out][0]}")
    states = np.flatnonzero(terminal)
    loops = np.array([(a, s, s, 1.0) for a in range(n_actions) for s in states]).reshape(-1, 4)
    return np.concatenate([entries[~terminal[source]], loops])


def _check_ends(mdp: FiniteMDP) -> None:
    """Raise where a return may be infinite: with gamma 1 and no horizon episodes must be able to end."""
    if mdp.gamma < 1.0 or mdp.horizon is not None:
        return
    stuck = ~mdp.terminal
    for matrix in mdp.transitions:
        stuck &= matrix.diagonal() >= 1.0 - 1e-12
    odd = np.flatnonzero(stuck & (mdp.rewards != 0).any(axis=1))
    if len(odd):
        raise CustardError(
            f"state {odd[0]} can never be left and goes on giving rewards: mark it terminal, or give gamma below 1 "
            "or a horizon"
        )
    if not can_end(mdp)[mdp.start > 0].any():
        raise CustardError(
            "no policy reaches a terminal state for sure from any start state: give gamma below 1 or a horizon"
        )
