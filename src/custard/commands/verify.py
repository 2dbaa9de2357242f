"""`custard verify`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from custard.commands.arguments import Flag, KeyValues, Name, Seconds, TreePath, Trees, Whole

if TYPE_CHECKING:
    from custard.tree.tree import Tree

__all__ = ["Command"]


@dataclass(frozen=True)
class Command:
    """Prove things about a tree. Exit code 1 means that something asked for does not hold or stayed undecided."""

    tree: TreePath
    """A tree file (tree.json) or a run directory."""

    assertions: Annotated[
        tuple[str, ...], tyro.conf.arg(name="assert", metavar="TEXT [TEXT ...]", help_behavior_hint="")
    ] = ()
    """Properties of every state, such as "pole_angle > 0.1 and pole_velocity > 0.5 -> push_right"."""

    anywhere: Flag = False
    """Let assertions range over all numbers, not only those within the features' bounds."""

    same: Trees = ()
    """Other trees: prove that each decides as this one on every observation."""

    safe_steps: Whole = None
    """CartPole: prove that from every start the pole stays up for this many steps."""

    seconds: Seconds = 60.0
    """Time for that proof."""

    value: Flag = False
    """Finite MDPs: the tree's exact value within the environment's time limit, beside the optimum."""

    reach: Annotated[str | None, tyro.conf.arg(metavar="TEXT", help_behavior_hint="")] = None
    """Finite MDPs: the probability of reaching a state where this condition on features holds."""

    within: Whole = None
    """Steps in which to reach it; without it any number of steps, and no time limit of the environment counts."""

    env: Name = None
    """The environment for --value and --reach; the one the tree was learned in, unless given."""

    env_args: KeyValues = ()
    """Arguments of that environment, as key=value."""

    json: Flag = False
    """Print the results as JSON."""

    def run(self) -> int:
        """Verify and print."""
        from custard.commands.common import load_tree, print_json
        from custard.core.errors import CustardError

        tree = load_tree(self.tree)
        if not self.seconds > 0:
            raise CustardError(f"--seconds {self.seconds:g} must be more than 0")
        if self.within is not None and self.reach is None:
            raise CustardError("--within says in how many steps to reach something: give --reach too")
        if self.anywhere and not self.assertions:
            raise CustardError("--anywhere says where assertions must hold: give --assert too")
        if (self.env is not None or self.env_args) and not self.value and self.reach is None:
            raise CustardError("--env and --env-args say where --value and --reach are computed: give one of them too")
        results = [self._assertion(tree, text) for text in self.assertions]
        results += [self._same(tree, other) for other in self.same]
        if self.safe_steps is not None:
            results.append(self._safe(tree))
        if self.value or self.reach is not None:
            results += self._finite(tree)
        if not results:
            raise CustardError("nothing to verify: give --assert, --same, --safe-steps, --value or --reach")
        if self.json:
            print_json(results)
        else:
            for result in results:
                print(result["says"])
        return 0 if all(result.get("holds", True) is True for result in results) else 1

    def _assertion(self, tree: Tree, text: str) -> dict[str, Any]:
        from custard.tree.text import one_line
        from custard.tree.verify import verify

        verdict, shown = verify(tree, text, bounded=not self.anywhere), one_line(text)
        where = "within the features' bounds" if verdict.bounded else "everywhere"
        found: dict[str, Any] = {"assertion": text, "holds": verdict.holds, "bounded": verdict.bounded}
        if verdict.holds:
            how = f"holds, but nothing meets its premise {where}" if verdict.vacuous else f"holds {where}"
            return {**found, "vacuous": verdict.vacuous, "says": f"{how}: {shown}"}
        if verdict.counterexample is None:
            return {**found, "says": f"undecided: false for some real numbers, no float64 found that shows it: {shown}"}
        state = dict(zip(tree.features.names, verdict.counterexample.tolist(), strict=True))
        action = tree.actions.name(verdict.action)
        says = f"does not hold: {shown}\n  counterexample: {_state(state)} → {one_line(action)}"
        return {**found, "counterexample": state, "action": action, "leaf": verdict.leaf, "says": says}

    def _same(self, tree: Tree, path: Path) -> dict[str, Any]:
        from custard.commands.common import load_tree
        from custard.tree.text import one_line
        from custard.tree.verify import difference

        other = load_tree(path)
        point = difference(tree, other)
        if point is None:
            says = "holds: both trees decide alike on every observation"
            return {"same": str(path), "holds": True, "says": says}
        state = dict(zip(tree.features.names, point.tolist(), strict=True))
        one, two = (one_line(t.actions.name(t.act(point))) for t in (tree, other))
        says = f"the trees differ at {_state(state)}: {one} against {two}"
        return {"same": str(path), "holds": False, "counterexample": state, "says": says}

    def _safe(self, tree: Tree) -> dict[str, Any]:
        from custard.planning.cartpole_safety import prove_safe
        from custard.tree.text import plural

        assert self.safe_steps is not None
        result = prove_safe(tree, self.safe_steps, seconds=self.seconds)
        steps = f"{result.proved} {plural('step', result.proved)}"
        says = f"proved for {steps}: from every start within ±0.05 the pole stays up"
        if result.failing_start is not None:
            start = ", ".join(repr(v) for v in result.failing_start.tolist())
            says = f"refuted: from the start ({start}) the pole falls at step {result.fails_at}\n  {says}"
        elif result.verdict == "undecided":
            says += (
                f"\n  undecided for {self.safe_steps}: {result.left}; {result.simulated:,} simulated starts stayed up"
            )
        failing = None if result.failing_start is None else result.failing_start.tolist()
        return {
            "safe_steps": self.safe_steps, "holds": {"proved": True, "refuted": False}.get(result.verdict),
            "verdict": result.verdict, "proved": result.proved, "failing_start": failing, "fails_at": result.fails_at,
            "boxes": result.boxes, "left": result.left, "seconds": result.seconds, "says": says,
        }  # fmt: skip

    def _finite(self, tree: Tree) -> list[dict[str, Any]]:
        from custard.commands.common import assignments
        from custard.planning.evaluate import tree_value
        from custard.planning.model import model_of
        from custard.planning.reach import reach_probability
        from custard.planning.solve import optimal_value
        from custard.task.history import remembered
        from custard.task.origin import environment_of
        from custard.task.source import source
        from custard.tree.text import one_line, plural
        from custard.tree.verify import where_holds

        env, kwargs = environment_of(tree, self.env, assignments(self.env_args, "--env-args"))
        mdp = model_of(
            remembered(tree, source(env, kwargs))[0], limit=True
        )  # so that the value is what episodes would show
        results: list[dict[str, Any]] = []
        if self.value:
            value, best = tree_value(tree, mdp), optimal_value(mdp)
            says = f"exact value {value:.6g}, optimum {best:.6g} over all policies of {env}"
            if mdp.horizon is not None:
                says += f", within its time limit of {mdp.horizon:,} {plural('step', mdp.horizon)}"
            results.append({"value": value, "optimum": best, "limit": mdp.horizon, "says": says})
        if self.reach is not None:
            target = where_holds(self.reach, mdp.x, mdp.features)
            count, probability = int(target.sum()), reach_probability(tree, mdp, target, self.within)
            when = "ever" if self.within is None else f"within {self.within} {plural('step', self.within)}"
            what = f"reaches {one_line(self.reach)} {when}"
            says = f"{what} with probability {probability:.9g} ({count} target {plural('state', count)})"
            found = {"reach": self.reach, "within": self.within, "probability": probability}
            results.append({**found, "says": says})
        return results


def _state(state: dict[str, float]) -> str:
    from custard.tree.text import one_line

    return ", ".join(f"{one_line(name)}={value!r}" for name, value in state.items())
