"""`custard plan`."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from custard.commands.arguments import Count, File, Flag, KeyValues, Seconds, Whole

if TYPE_CHECKING:
    from custard.core.mdp import FiniteMDP
    from custard.task.source import Source

__all__ = ["Command"]


@dataclass(frozen=True)
class Command:
    """Find the best tree of a model, with a proof or with the gap that is left."""

    model: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="MODEL")]
    """A PRISM, JANI or DRN file, a .json or .npz model of custard, or the id of an environment with an exact model;
    with --start-seed also a compiled environment whose steps leave nothing to chance, such as CartPole-v1."""

    max_depth: Whole = None
    """The largest number of questions on a path; the smallest that loses nothing if not given."""

    property: Annotated[str | None, tyro.conf.arg(metavar="PROPERTY", help_behavior_hint="")] = None
    """What a PRISM, JANI or DRN model is to optimise, such as 'R{"cost"}min=? [F "done"]' or 'Pmax=? [F "goal"]'."""

    constants: KeyValues = ()
    """Undefined constants of a PRISM or JANI model, as name=value."""

    env_args: KeyValues = ()
    """Arguments of the environment, as key=value."""

    gamma: Annotated[float | None, tyro.conf.arg(metavar="GAMMA", help_behavior_hint="")] = None
    """Discount of the return per step; the model's own if not given."""

    zeta: Annotated[float, tyro.conf.arg(metavar="ZETA")] = 0.0
    """The price of a question (zero or negative)."""

    seconds: Seconds = 60.0
    """Stop after this long, with the best tree and the gap."""

    fewest_leaves: Flag = False
    """Once the return is proved, go on for a tree of fewer leaves."""

    start: Annotated[str | None, tyro.conf.arg(metavar="TREES", help_behavior_hint="")] = None
    """Begin from the trees of these files or run directories, separated by commas: tpi's, for example."""

    start_seed: Whole = None
    """Plan for the episode that begins as the environment does with this seed, and for no other start."""

    episodes: Count = 1
    """With --start-seed: for the starts of so many seeds, from that one on."""

    splits: Count = 9
    """With --start-seed: thresholds per feature, evenly spaced between its bounds."""

    seed: Count = 0
    """The seed of all randomness."""

    out: File = None
    """Keep the tree, with its certificate, in this file (.json)."""

    json: Flag = False
    """Print the result as JSON, and no progress."""

    def run(self) -> None:
        """Plan, keep the tree, print what is proved."""
        from custard.commands.common import print_json
        from custard.core.errors import CustardError, require_whole
        from custard.lab.progress import Display
        from custard.planning.fixed_starts import plan_from_starts
        from custard.planning.optimal_tree import Settings, fixed_start, plan
        from custard.planning.plans import snapshot_of
        from custard.tree.certificate import certificate_of, certificate_text
        from custard.tree.store import fingerprint

        require_whole(0, seed=self.seed, max_depth=self.max_depth)
        if self.out is not None and self.out.suffix != ".json":
            raise CustardError(f"--out {self.out}: the name must end in .json")
        if self.out is not None and not self.out.parent.is_dir():
            raise CustardError(f"--out {self.out}: there is no folder {self.out.parent}")
        settings = Settings(
            zeta=self.zeta, seconds=self.seconds, fewest_leaves=self.fewest_leaves, start=self.start,
            gamma=1.0 if self.gamma is None else self.gamma, start_seed=self.start_seed, episodes=self.episodes,
            splits=self.splits,
        )  # fmt: skip
        began = time.monotonic()
        if self.start_seed is None:
            plans = plan(self._model(), self.max_depth, settings, seed=self.seed)
        else:
            where = self._environment()
            plans = plan_from_starts(where, self.max_depth, seed=self.seed, **fixed_start(settings))
        with Display(f"plan on {Path(self.model).name}", enabled=not self.json) as display:
            for found in plans:
                display.show(snapshot_of(found), time.monotonic() - began)
        told = {"model": self.model, "property": self.property, "seed": self.seed}
        tree = found.tree.with_origin(method="plan", **told, fingerprint=fingerprint(found.tree))
        if self.out is not None:
            tree.save(self.out)
        if self.json:
            size = {"depth": tree.depth, "leaves": tree.n_leaves, "nodes": tree.n_nodes}
            print_json({
                **(certificate_of(tree) or {}), "gap": found.gap, "seconds": time.monotonic() - began, "tree": size,
                "out": None if self.out is None else str(self.out), "message": found.message,
            })  # fmt: skip
            return
        print(tree)
        print(f"depth {tree.depth}, leaves {tree.n_leaves}, nodes {tree.n_nodes}")
        print(certificate_text(tree))
        if self.out is not None:
            print(f"wrote {self.out}")

    def _environment(self) -> Source:
        """Return the environment that was named, or the one that acts out the model in a file."""
        from custard.commands.common import assignments
        from custard.planning.env import FiniteEnv
        from custard.planning.storm import SUFFIXES
        from custard.task.source import source

        is_file = Path(self.model).suffix in (*SUFFIXES, ".json", ".npz")
        return source(FiniteEnv(self._model()) if is_file else self.model, assignments(self.env_args, "--env-args"))

    def _model(self) -> FiniteMDP:
        """Return the model that was named."""
        from dataclasses import replace

        from custard.commands.common import assignments
        from custard.core.errors import CustardError
        from custard.planning.optimal_tree import model_to_plan
        from custard.planning.store import load
        from custard.planning.storm import SUFFIXES, load_with_storm
        from custard.task.source import source

        path = Path(self.model)
        if path.suffix in (".pkl", ".pickle"):
            raise CustardError(
                f"{path}: pickles run code and are not read; docs/explanation/planning.md converts OMDT's"
            )
        is_storm, is_stored = path.suffix in SUFFIXES, path.suffix in (".json", ".npz")
        if is_storm and self.property is None:
            raise CustardError(f'{path} needs --property, such as \'R{{"cost"}}min=? [F "done"]\'')
        if not is_storm and (self.property is not None or self.constants):
            raise CustardError("--property and --constants are for PRISM, JANI and DRN models")
        if self.env_args and (is_storm or is_stored):
            raise CustardError("--env-args are for environments, not for files")
        gamma = 1.0 if self.gamma is None else self.gamma
        if is_storm:
            constants = assignments(self.constants, "--constants")
            return load_with_storm(path, str(self.property), constants=constants, gamma=gamma)
        if is_stored:
            mdp = load(path)
            return mdp if self.gamma is None else replace(mdp, gamma=gamma)
        return model_to_plan(source(self.model, assignments(self.env_args, "--env-args")), gamma=gamma, limit=True)
