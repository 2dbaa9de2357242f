"""PRISM: the Markov chain that a finite MDP becomes when the tree acts in it, for Storm and PRISM.

State `s` counts the MDP's states that the tree can reach; one more state draws the start and, where gamma < 1, one more
stands for the discount: every step ends there with probability 1 - gamma, which makes expected total rewards the
discounted ones. Rewards must not be negative in PRISM, so that they come as two structures, "gain" and "loss":

    R{"gain"}=? [F "done"] - R{"loss"}=? [F "done"]     the tree's value
    P=? [F "target"]                                     the probability of reaching the target
    P=? [F<=k+1 "target"]                                within k steps (drawing the start takes one more)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from custard.core.errors import CustardError
from custard.tree.export.names import comment, identifiers
from custard.tree.mdp_policy import mdp_policy
from custard.tree.tree import Tree

if TYPE_CHECKING:
    from custard.core.mdp import FiniteMDP

__all__ = ["to_prism"]


def to_prism(tree: Tree, mdp: FiniteMDP | None = None, target: Any = None) -> str:
    """Return the chain MDP × tree as a PRISM `dtmc`; `target` ([S] bool) adds the label "target".

    >>> import gymnasium as gym, custard
    >>> mdp = gym.make("custard/PrereqWorld-v0", m=1).unwrapped.mdp()
    >>> print(to_prism(custard.Tree.leaf(0, mdp.features, mdp.actions), mdp))
    // A finite MDP of 2 states under a decision tree of depth 0, written by custard.
    dtmc
    <BLANKLINE>
    module chain
      s : [0..2] init 2;
      [] s=0 -> 1.0:(s'=1); // make_0
      [] s=1 -> 1.0:(s'=1); // the end
      [] s=2 -> 1.0:(s'=0); // the start
    endmodule
    <BLANKLINE>
    label "done" = s=1;
    label "do_make_0" = s=0;
    <BLANKLINE>
    rewards "gain"
      s=2 : 0.0;
    endrewards
    <BLANKLINE>
    rewards "loss"
      s=2 : 0.0;
    endrewards
    <BLANKLINE>
    """
    if not tree.actions.discrete:
        raise CustardError(f"prism holds discrete actions only, but this tree's are {tree.actions.kind!r} vectors")
    if mdp is None:
        raise CustardError(
            "prism needs the finite MDP that the tree acts in: name an environment that has an exact model"
        )
    choice = mdp_policy(tree, mdp)
    matrix, reward = mdp.policy_model(choice)
    states = _reached(matrix, mdp)
    start, stop = len(states), len(states) + 1 if mdp.gamma < 1.0 else None
    lines = [
        f"// A finite MDP of {mdp.n_states} states under a decision tree of depth {tree.depth}, written by custard.",
        "dtmc", "", "module chain", f"  s : [0..{start if stop is None else stop}] init {start};",
        *_commands(mdp, matrix, choice, states, start, stop), "endmodule", "",
        *_labels(mdp, choice, states, stop, target),
    ]  # fmt: skip
    for name, sign in (("gain", 1.0), ("loss", -1.0)):
        part = [f"  s={k} : {sign * float(reward[s])!r};" for k, s in enumerate(states) if sign * reward[s] > 0]
        # A structure must not be empty: where nothing is earned, say so of one state.
        lines += ["", f'rewards "{name}"', *(part or [f"  s={start} : 0.0;"]), "endrewards"]
    return "\n".join(lines) + "\n"


def _commands(
    mdp: FiniteMDP, matrix: Any, choice: np.ndarray, states: np.ndarray, start: int, stop: int | None
) -> list[str]:
    """Return one command per state of the chain: where it leads, and with what probability.

    mdp     the model
    matrix  [S, S] sparse, its transitions under the tree
    choice  [S], the tree's action numbers
    states  those that the tree can reach, in the order of their numbers in the chain
    start   the number of the state that draws the start
    stop    the number of the state that stands for the discount; None without one
    """
    number = {int(state): k for k, state in enumerate(states)}
    lines = []
    for k, state in enumerate(states.tolist()):
        if mdp.terminal[state]:
            lines.append(f"  [] s={k} -> 1.0:(s'={k}); // the end")
            continue
        row = slice(matrix.indptr[state], matrix.indptr[state + 1])
        moves = [
            (mdp.gamma * float(p), number[int(j)])
            for p, j in zip(matrix.data[row], matrix.indices[row], strict=True)
            if p > 0
        ]
        if stop is not None:
            moves.append((1.0 - mdp.gamma, stop))
        lines.append(f"  [] s={k} -> {_updates(moves)}; // {comment(mdp.actions.names[choice[state]])}")
    begin = [(float(mdp.start[state]), number[int(state)]) for state in np.flatnonzero(mdp.start > 0)]
    lines.append(f"  [] s={start} -> {_updates(begin)}; // the start")
    if stop is not None:
        lines.append(f"  [] s={stop} -> 1.0:(s'={stop}); // discounted away")
    return lines


def _labels(mdp: FiniteMDP, choice: np.ndarray, states: np.ndarray, stop: int | None, target: Any) -> list[str]:
    """Return the labels "done", "target" and one per action that the tree takes. Parameters as in `_commands`."""
    done = np.flatnonzero(mdp.terminal[states]).tolist() + ([stop] if stop is not None else [])
    lines = [f'label "done" = {_condition(done)};']
    if target is not None:
        lines.append(f'label "target" = {_condition(np.flatnonzero(np.asarray(target, dtype=bool)[states]).tolist())};')
    for a, word in enumerate(identifiers(mdp.actions.names, "do_")):
        own = np.flatnonzero((choice[states] == a) & ~mdp.terminal[states]).tolist()
        if own:
            lines.append(f'label "{word}" = {_condition(own)};')
    return lines


def _reached(matrix: Any, mdp: FiniteMDP) -> np.ndarray:
    """Return the states the chain can be in, ascending."""
    seen = mdp.start > 0
    front = np.flatnonzero(seen)
    while len(front):
        after = np.unique(matrix[front].nonzero()[1])
        front = after[~seen[after]]
        seen[front] = True
    return np.flatnonzero(seen)


def _updates(moves: list[tuple[float, int]]) -> str:
    """Return (probability, state) pairs as the updates of a PRISM command."""
    return " + ".join(f"{probability!r}:(s'={to})" for probability, to in moves)


def _condition(numbers: list[int]) -> str:
    """Return the condition that s is one of some numbers, runs of them as ranges."""
    if not numbers:
        return "false"
    ordered = sorted(numbers)
    runs = [[ordered[0], ordered[0]]]
    for k in ordered[1:]:
        if k == runs[-1][1] + 1:
            runs[-1][1] = k
        else:
            runs.append([k, k])
    return "|".join(f"s={a}" if a == b else f"(s>={a}&s<={b})" for a, b in runs)
