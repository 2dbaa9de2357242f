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
    """The chain MDP × tree as a PRISM `dtmc`; `target` ([S] bool) adds the label "target".

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
    number = {int(state): k for k, state in enumerate(states)}
    start, stop = len(states), len(states) + 1 if mdp.gamma < 1.0 else None
    last = start if stop is None else stop
    lines = [
        f"// A finite MDP of {mdp.n_states} states under a decision tree of depth {tree.depth}, written by custard.",
        "dtmc", "", "module chain", f"  s : [0..{last}] init {start};",
    ]  # fmt: skip
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
        lines.append(f"  [] s={k} -> {_sum(moves)}; // {comment(mdp.actions.names[choice[state]])}")
    begin = [(float(mdp.start[state]), number[int(state)]) for state in np.flatnonzero(mdp.start > 0)]
    lines.append(f"  [] s={start} -> {_sum(begin)}; // the start")
    if stop is not None:
        lines.append(f"  [] s={stop} -> 1.0:(s'={stop}); // discounted away")
    lines += ["endmodule", ""]
    done = [number[int(state)] for state in states if mdp.terminal[state]] + ([stop] if stop is not None else [])
    lines.append(f'label "done" = {_any(done)};')
    if target is not None:
        marked = np.asarray(target, dtype=bool)
        lines.append(f'label "target" = {_any([number[int(s)] for s in states if marked[s]])};')
    for a, word in enumerate(identifiers(mdp.actions.names, "do_")):
        own = [number[int(s)] for s in states if choice[s] == a and not mdp.terminal[s]]
        if own:
            lines.append(f'label "{word}" = {_any(own)};')
    for name, sign in (("gain", 1.0), ("loss", -1.0)):
        part = [f"  s={number[int(s)]} : {sign * float(reward[s])!r};" for s in states if sign * reward[s] > 0]
        # A structure must not be empty: where nothing is earned, say so of one state.
        lines += ["", f'rewards "{name}"', *(part or [f"  s={start} : 0.0;"]), "endrewards"]
    return "\n".join(lines) + "\n"


def _reached(matrix: Any, mdp: FiniteMDP) -> np.ndarray:
    """The states the chain can be in, ascending."""
    seen = mdp.start > 0
    front = np.flatnonzero(seen)
    while len(front):
        after = np.unique(matrix[front].nonzero()[1])
        front = after[~seen[after]]
        seen[front] = True
    return np.flatnonzero(seen)


def _sum(moves: list[tuple[float, int]]) -> str:
    return " + ".join(f"{probability!r}:(s'={to})" for probability, to in moves)


def _any(numbers: list[int]) -> str:
    """A condition on s, runs of numbers as ranges."""
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
