"""`custard explain`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from custard.commands.arguments import Flag, KeyValues, Name, Names, Texts, TreePath, Whole

if TYPE_CHECKING:
    from custard.tree.explain import Change, Explanation
    from custard.tree.tree import Tree

__all__ = ["Command"]


@dataclass(frozen=True)
class Command:
    """Say why a tree acts as it does in one state, what would change its mind, and which features matter."""

    tree: TreePath
    """A tree file (tree.json) or a run directory."""

    obs: Texts = ()
    """An observation: one number per feature in order, or name=value for each. Without it: how the tree is used."""

    fixed: Names = ()
    """Features that counterfactuals must leave as they are."""

    env: Name = None
    """The environment whose visited states count, for usage; the one the tree was learned in, unless given."""

    env_args: KeyValues = ()
    """Arguments of that environment, as key=value."""

    episodes: Whole = None
    """How many episodes to run for usage (20 unless given)."""

    seed: Whole = None
    """Where their seeds come from (1 unless given)."""

    json: Flag = False
    """Print the result as JSON."""

    def run(self) -> None:
        """Explain and print."""
        from custard.commands.common import load_tree, print_json
        from custard.core.errors import CustardError
        from custard.tree.text import one_line, plural

        if self.fixed and not self.obs:
            raise CustardError("--fixed holds features of an observation as they are: give --obs too")
        for name in ("env", "env_args", "episodes", "seed"):
            if self.obs and getattr(self, name) not in (None, ()):
                raise CustardError(f"--{name.replace('_', '-')} is for usage, not for one observation: leave out --obs")
        tree = load_tree(self.tree)
        result = self._decision(tree) if self.obs else self._usage(tree)
        if self.json:
            print_json(result)
        elif self.obs:
            print(f"{result['rule']}")
            for change in result["counterfactuals"]:
                print(f"{one_line(change['action'])} if {change['change']} (distance {change['distance']:.3g})")
            for name in result["unreachable"]:
                print(f"{one_line(name)}: no change of the features that may change leads there")
        else:
            print(f"{result['states']:,} states of {result['episodes']} {plural('episode', result['episodes'])}")
            for leaf in result["leaves"]:
                print(f"{100 * leaf['share']:5.1f} %  {leaf['rule']}")
            for name, share in result["features"].items():
                print(f"{one_line(name)}: asked about in {100 * share:.1f} % of the states")
            if result["never_matter"]:
                print(one_line(f"never matter: {', '.join(result['never_matter'])}"))

    def _decision(self, tree: Tree) -> dict[str, Any]:
        from custard.tree.explain import explain

        told = explain(tree, parse_observation(tree, self.obs), fixed=self.fixed)
        x, names = told.observation, tree.features.raw.names
        changes = []
        for change in told.changes:
            by_sums = any(c >= tree.features.n_raw for c in (*tree.box(change.leaf), *tree.box(told.path[-1])))
            moves = _moves(tree, told, change) if by_sums else [_move(tree, c, told, change) for c in change.features]
            changes.append({
                "action": tree.actions.name(change.action), "change": " and ".join(moves), "distance": change.distance,
                "observation": dict(zip(names, change.observation.tolist(), strict=True)),
            })  # fmt: skip
        return {
            "observation": dict(zip(names, x.tolist(), strict=True)), "action": tree.actions.name(told.action),
            "rule": told.rule, "path": list(told.path), "counterfactuals": changes,
            "unreachable": [tree.actions.name(action) for action in told.unreachable],
        }  # fmt: skip

    def _usage(self, tree: Tree) -> dict[str, Any]:
        import numpy as np

        from custard.commands.common import watch_episodes
        from custard.core.errors import require_whole
        from custard.tree.explain import rule, usage

        require_whole(1, episodes=self.episodes)
        episodes = 20 if self.episodes is None else self.episodes
        env, runs = watch_episodes(tree, self.env, self.env_args, episodes, 1 if self.seed is None else self.seed)
        states = np.concatenate([run.x for run in runs])
        used = usage(tree, states)
        order = sorted(tree.leaves().tolist(), key=lambda leaf: -used.visits[leaf])
        return {
            "env": env, "episodes": episodes, "states": len(states),
            "leaves": [{"node": k, "share": used.visits[k] / len(states), "rule": rule(tree, k)} for k in order],
            "features": dict(zip(tree.features.names, used.asked.tolist(), strict=True)),
            "unused": list(used.unused), "never_matter": list(used.never_matter),
        }  # fmt: skip


def _moves(tree: Tree, told: Explanation, change: Change) -> list[str]:
    """Say how features change together, with enough digits that the tree reaches the leaf at the numbers shown."""
    from custard.tree.text import one_line

    for digits in range(6, 18):
        shown = change.observation.copy()
        for c in change.features:
            shown[c] = float(f"{change.observation[c]:.{digits}g}")
        if tree.path(shown)[-1] == change.leaf:
            break
    moves = []
    for c in change.features:
        before, after = float(told.observation[c]), float(change.observation[c])
        how = "rose" if after > before else "fell" if after < before else "changed"
        begins, ends = (f"{value:.{digits}g}" for value in (before, after))
        moves.append(f"{one_line(tree.features.names[c])} {how} from {begins} to {ends}")
    return moves


def _move(tree: Tree, c: int, told: Explanation, change: Change) -> str:
    """Say how one feature changes, with enough digits that the tree decides as the sentence says."""
    from custard.tree.text import bound_text, near, number, one_line

    before, after = float(told.observation[c]), float(change.observation[c])
    above, most = tree.box(told.path[-1]).get(c, (-math.inf, math.inf))
    low, high = tree.box(change.leaf)[c]
    least, greatest = (float(bound_text(tree, c, edge, before)) for edge in (above, most))  # as the rule shows them

    def stays(shown: float) -> bool:
        alike = all((shown < other) == (before < other) for other in (after, low))
        apart = shown not in (after, low) or shown == before
        return alike and apart and above < shown <= most and least < shown <= greatest and near(tree, c, shown, before)

    def leads(shown: float) -> bool:
        as_told = (shown > start) == (after > before) and shown != start
        crosses = (least < shown <= greatest) == (above < after <= most)  # the rule's bounds, or stays within them
        return as_told and crosses and low < shown <= high and near(tree, c, shown, after)

    def opens(shown: float) -> bool:
        return low <= shown < high and start <= shown and near(tree, c, shown, low)

    begins = number(before, stays)
    start, to = float(begins), ""
    if after > before and not tree.features.integer[c]:
        to = f"just above {number(low, opens)}"  # the float after 0 is no number for people
    how = "rose" if after > before else "fell" if after < before else "changed"
    return f"{one_line(tree.features.names[c])} {how} from {begins} to {to or number(after, leads)}"


def parse_observation(tree: Tree, texts: tuple[str, ...]) -> list[float]:
    """Parse numbers in order, or name=value for every feature, into one number per feature."""
    from custard.core.errors import CustardError

    parts = [part for text in texts for part in text.replace(",", " ").split()] if "=" not in "".join(texts) else texts
    named = [part.rpartition("=") for part in parts]
    try:
        if not any(equals for _, equals, _ in named):
            return [_number(value) for *_, value in named]
        if not all(equals for _, equals, _ in named):
            raise CustardError("--obs mixes names and numbers: give numbers in order, or name=value for each feature")
        values = {name: _number(value) for name, _, value in named}
    except CustardError:
        raise
    except ValueError as error:
        raise CustardError(f"--obs takes numbers or name=value: {error}") from None
    for name in values:
        tree.features.raw.index(name)
    if len(values) < len(named):
        names = [name for name, *_ in named]
        raise CustardError(f"--obs gives {next(name for name in names if names.count(name) > 1)} more than once")
    missing = [name for name in tree.features.raw.names if name not in values]
    if missing:
        raise CustardError(f"--obs lacks {', '.join(missing)}")
    return [values[name] for name in tree.features.raw.names]


def _number(text: str) -> float:
    """Return a number; inf is one, but digits that are too large for a float64 are a mistake."""
    value = float(text)
    if math.isinf(value) and "inf" not in text.lower():
        raise ValueError(f"{text} is too large for a float64 (inf stands for infinity)")
    return value
