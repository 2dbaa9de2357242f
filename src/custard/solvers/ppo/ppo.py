"""CUSTARD (PPO): an actor over bounds that is the tree, and an omniscient critic that teaches it.

* The actor's input is s_w without s_b: the bounds. Its masked softmax pi(a | o) is the policy; extraction takes the
  largest output. In the parameterised form further outputs say where each feature is split; where base actions are
  vectors, yet others say which vector a leaf holds.
* The critic Q_o is omniscient. The value of a base action does not depend on the bounds, so Q_o(s_b, .) is learned for
  base actions from base states (where actions are vectors, the vector is part of its input); the value of a question is
  zeta a question plus Q_o at the leaf which the greedy tree reaches from its answer.

An iteration: compiled rollouts (`acting`) follow the policy in the environment and descend to imagined
nodes for every base state met. Then one compiled JAX call (`update`) moves the critic to the merged agent's
targets, and the actor by PPO's clipped ratio, for all actions of a node at once. Every few iterations a tree is
extracted and judged.

`docs/ppo.md` says why, `docs/deviations.md` lists what differs from the paper.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from custard.core.errors import require_least, require_shares
from custard.core.threads import meanwhile
from custard.envs.pcg64 import streams
from custard.ibmdp.splits import PARAMETERISED, Rules
from custard.nn.checkpoints import from_arrays, to_arrays
from custard.nn.networks import make
from custard.solvers.common.bounds_survey import choose_bounds, default_splits
from custard.solvers.common.selection import Selection
from custard.solvers.ppo.acting_data import (
    ACTION_SPREAD,
    GREED,
    SPREAD,
    Game,
    make_game,
    make_nodes,
    make_rows,
)
from custard.solvers.ppo.drawing import BoundsNetwork, nearby
from custard.solvers.ppo.paper import solve_as_written
from custard.solvers.ppo.stepping import Foreign, Native
from custard.solvers.ppo.update import ADAM, Networks, Now, improve
from custard.task.problem import Problem, Snapshot
from custard.tree.extract import extract
from custard.tree.tree import Tree

__all__ = ["PRESETS", "Settings", "solve"]


@dataclass(frozen=True)
class Settings:
    """Settings of CUSTARD (PPO). The defaults are the preset "tuned"."""

    budget: int | None = None  # environment steps, judging included; None: 400,000, 200,000 where Python steps
    splits: Any = None  # p, thresholds a feature, or "parameterised"; None: that, or all cuts of whole numbers
    zeta: float | None = None  # the reward of a question; None: -0.01, or that share of rewards far from 1
    gamma_b: float | None = None  # discount of a base action; None: 1 where only terminations end episodes, else 0.99
    gamma_w: float = 1.0  # discount of a question
    trace: float = 0.8  # lambda of the critic's targets
    hidden: int = 64  # units in each of the two hidden layers of actor and critic
    frequencies: int = 0  # sines and cosines of each bound added to the actor's input
    critic_frequencies: int = 0  # and of each feature to the critic's
    num_envs: int = 32  # environments side by side
    num_steps: int = 64  # rows an iteration takes from each
    epochs: int = 4
    minibatches: int = 16
    learning_rate: float = 1e-3  # Adam, falling linearly to 0.3 of this
    clip: float = 0.2  # PPO's epsilon
    floor: float = 0.03  # probabilities are not pushed below this, falling to 0.001
    uniform: float = 1.0  # how evenly a node's actions count, beside their probabilities; falls to `uniform_end`
    uniform_end: float = 0.0
    epsilon: float = 0.9  # share of random questions in imagined descents, falling to `epsilon_end`
    epsilon_end: float = 0.3
    spread: float = 1.0  # standard deviation of v before it is squashed, falling to a tenth (parameterised form)
    action_spread: float = 0.5  # and of action vectors, in halves of the distance between their bounds
    explore: float = 0.25  # share of the environments in which random base actions teach the critic
    random: float = 0.2  # share of random base actions there, falling to this from 1
    warmup: float = 0.05  # share of the budget in which only the critic learns
    deepest: int = 12  # depth limit where none is given
    greedy: float = 1.0  # share of the greedy tree's own actions in the environment at the end, rising from 0
    every: int = 2  # iterations between two extracted trees
    draws: int = 4  # trees drawn from the stochastic policy and judged beside the greedy one
    judging: float = 0.5  # share of all steps that judging trees may take
    episodes: int | None = None  # selection episodes of the best tree; None: a 4,000th of the budget, 32 to 512
    margin: float = 1.0  # standard errors by which a smaller tree may be worse, and a larger one must be better
    patience: float = 0.4  # share of the budget without a better tree before stopping
    bootstrap_at_limit: bool = True  # what would follow a time limit counts; False: nothing does
    keep: bool = True  # hand back the best tree judged; False: the last one
    shared: bool = True  # keep Q_o of base actions by base state, learn all actions; False: PPO as the paper writes it
    low: Any = None  # bounds of the features, where the environment's own do not suit
    high: Any = None

    def __post_init__(self) -> None:
        require_least(self, 1, "num_envs", "num_steps", "epochs", "minibatches", "deepest", "every", "episodes")
        require_least(self, 0, "hidden", "frequencies", "critic_frequencies", "learning_rate", "clip", "spread")
        require_least(self, 0, "action_spread", "draws", "margin", "patience")
        require_shares(self, "trace", "floor", "uniform", "uniform_end", "epsilon", "epsilon_end", "explore", "random")
        require_shares(self, "warmup", "greedy", "judging")


_POTHOLE = {"zeta": -0.01, "gamma_b": 0.5, "trace": 0.0, "frequencies": 7, "critic_frequencies": 9, "random": 1.0,
            "splits": 3, "epsilon_end": 0.9, "uniform_end": 1.0, "draws": 1}  # fmt: skip

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "tuned": {
        # Judging costs many steps here and hardly any time, and only many episodes show the last rare failures.
        "CartPole": {"low": [-2.0, -2.0, -0.14, -1.4], "high": [2.0, 2.0, 0.14, 1.4], "budget": 80_000_000,
                     "zeta": -0.01, "gamma_b": 0.997, "learning_rate": 3e-4, "judging": 0.99, "draws": 24,
                     "margin": 0.0, "episodes": 2000, "patience": 1.0},
        "PrereqWorld": {"zeta": -0.01},
        "PotholeWorld": _POTHOLE,
        "Pendulum": {"zeta": -0.01, "budget": 2_000_000, "deepest": 5},
    },
    # The budget counts steps of the IBMDP here, as the appendix does; what it leaves open is Stable Baselines' default.
    "paper": {
        "": {"shared": False, "keep": False, "budget": 3_200_000, "splits": 3, "zeta": -0.01, "gamma_b": 1.0,
             "gamma_w": 1.0, "deepest": 1000, "num_envs": 1, "num_steps": 1024, "epochs": 4, "minibatches": 4,
             "learning_rate": 2.5e-4, "clip": 0.2},
        "CartPole": {"num_steps": 512, "bootstrap_at_limit": False,
                     "low": [-2.0, -2.0, -0.14, -1.4], "high": [2.0, 2.0, 0.14, 1.4]},
        "PrereqWorld": {"splits": 1},
        "PotholeWorld": {"zeta": 0.0, "gamma_b": 0.99, "gamma_w": 0.99},
    },
}  # fmt: skip

NATIVE_BUDGET, FOREIGN_BUDGET = 400_000, 200_000
PRICE = 0.01  # of a question, in rewards of their usual size
FEW = 32  # episodes that judge a tree at first
ITERATIONS = 20  # at least, however small the budget
FLOOR_END, RATE_END, SPREAD_END = 0.001, 0.3, 0.1
STEPS, ITERATION, FOUND = range(3)  # entries of `Learner.at`


def solve(problem: Problem, settings: Settings, state: dict[str, np.ndarray] | None = None) -> Iterator[Snapshot]:
    """Learn in iterations; yields the best tree so far whenever one was judged."""
    settings = replace(settings, budget=settings.budget or (NATIVE_BUDGET if problem.native else FOREIGN_BUDGET))
    if not settings.shared:
        rules, surveyed = rules_for(problem, settings)
        yield from solve_as_written(problem, rules, settings, surveyed, state)
        return
    learner = Learner(problem, settings, state)
    while not learner.message:
        if learner.advance():
            yield learner.snapshot()


def rules_for(problem: Problem, s: Settings) -> tuple[Rules, int]:
    """The IBMDP, and the environment steps it took to see where features lie and what episodes are like."""
    features, surveyed = choose_bounds(problem, problem.seeds("bounds")["bounds"], s.budget or NATIVE_BUDGET)
    gamma_b = problem.gamma_b if s.gamma_b is None else s.gamma_b
    zeta = -PRICE if s.zeta is None else s.zeta / (problem.unit if s.shared else 1.0)
    depth = problem.max_depth if problem.max_depth is not None else s.deepest
    whole = features.integer.all() and problem.base.actions.discrete
    splits = s.splits or (default_splits(features) if whole else PARAMETERISED)
    return Rules(features, problem.base.actions, splits, zeta, gamma_b, s.gamma_w, depth), surveyed + problem.looked


class Learner:
    """One run: the networks, the environments, the selection, and where it stands."""

    def __init__(self, problem: Problem, settings: Settings, state: dict[str, np.ndarray] | None = None) -> None:
        self.problem, self.settings, self.budget = problem, settings, settings.budget or NATIVE_BUDGET
        s, seeds = settings, problem.seeds("learner", "environment")
        self.rules, self.surveyed = rules_for(problem, s)
        self.at = np.zeros(3, dtype=np.int64)
        self.prices = (self.rules.zeta, self.rules.gamma_b, s.gamma_w)
        # What the compiled call depends on:
        self.fixed = replace(s, zeta=None, low=None, high=None, splits=None, budget=None)
        self.game: Game = make_game(self.rules, s.frequencies)
        rng, n, n_base = np.random.default_rng(seeds["learner"]), self.rules.features.n, self.rules.n_base
        n_vector = self.game.vector.shape[1]
        outputs = self.rules.n_actions + (n if self.rules.parameterised else 0) + n_vector
        hidden = (s.hidden,) * 2 if s.hidden else ()
        actor = make(rng, (2 * n * (1 + 2 * s.frequencies), *hidden, outputs), last=0.01)
        critic = make(rng, (n * (1 + 2 * s.critic_frequencies) + n_vector, *hidden, 1 + n_base), last=0.1)
        scale = np.array([0.0, 1.0, 1.0], dtype=np.float32)
        self.nets = Networks(actor, critic, ADAM.init(actor), ADAM.init(critic), scale)  # type: ignore[arg-type]
        self.order = seeds["learner"]
        where = Native if problem.native else Foreign
        self.env: Any = where(problem.scaled, s.num_envs, seeds["environment"], not s.bootstrap_at_limit)
        count = self.env.count
        self.nodes = make_nodes(self.game, actor)
        self.rng = streams(np.random.SeedSequence(seeds["learner"]).spawn(count))
        least = -(-s.minibatches // count)  # a row for each minibatch
        self.rows = make_rows(self.game, count, min(s.num_steps, max(least, self.budget // (ITERATIONS * count))))
        self.exploring = np.arange(count) < max(round(s.explore * count), min(count - 1, s.explore > 0))
        episodes = s.episodes or int(np.clip(self.budget // 4000, FEW, 512))
        self.selection = Selection(problem, episodes, margin=s.margin, budget=self.budget)
        self.final: Tree | None = None
        self.final_value, self.message, self.report = float("nan"), "", np.zeros(4)
        self.ended, self.clock, self.learned, self.first = np.zeros(2), time.perf_counter(), 0, True
        if state is not None:
            self._restore(state)

    def advance(self) -> bool:
        """One iteration; whether a tree was judged."""
        at, s = self.at, self.settings
        tau = min(1.0, at[STEPS] / self.budget)

        def between(start: float, end: float) -> float:
            return start + (end - start) * tau

        random = max(s.random, 1.0 + (s.random - 1.0) * tau / 0.3) if s.random < 1.0 else 1.0
        rate = s.learning_rate * between(1.0, RATE_END)
        floor = np.exp(between(np.log(s.floor), np.log(min(s.floor, FLOOR_END))))
        spreads = s.spread * between(1.0, SPREAD_END), s.action_spread * between(1.0, SPREAD_END)
        now = Now(rate, rate if tau >= s.warmup else 0.0, np.log(floor), between(s.uniform, s.uniform_end), *spreads)
        for node in self.nodes:
            node.knob[[SPREAD, ACTION_SPREAD, GREED]] = *spreads, s.greedy * min(1.0, 2.0 * tau)
        weights = tuple(np.array(w) for w in self.nets.actor)
        epsilon, explores = between(s.epsilon, s.epsilon_end), np.where(self.exploring, random, 0.0)
        rng = np.random.default_rng([self.order, int(at[ITERATION])])
        size = self.rows.acts.size
        shape = (2, s.epochs * s.minibatches, size // s.minibatches)
        used = shape[2] * s.minibatches
        order = np.stack([rng.permutation(size)[:used] for _ in range(2 * s.epochs)]).reshape(shape).astype(np.int32)
        learning = (self.nets, self.rows, order, now, self.fixed, self.prices, self.rules.parameterised)
        with meanwhile(improve, *learning) if self.first else nullcontext():
            at[STEPS] += self.env.run(
                self.game, weights, *self.nodes, self.rng, explores, epsilon, self.rows, self.ended
            )
        nets, report = improve(*learning)
        self.nets, self.report, self.first = nets, np.asarray(report), False
        self.learned += size
        at[ITERATION] += 1
        if at[STEPS] >= self.budget:
            self.message = "budget used"
        if at[ITERATION] % s.every and not self.message:
            return False
        # Judging is limited: at first, trees that never end an episode would use all steps.
        if self.selection.best is not None and self.selection.steps > s.judging * at[STEPS] and not self.message:
            return False
        self._judge()
        return True

    def _judge(self) -> None:
        at, s, spent, improved = self.at, self.settings, self.selection.steps, self.selection.improved
        if self.rules.parameterised:  # many trees are drawn: at first a few episodes tell enough
            chosen, share = self.selection, min(1.0, 2.0 * at[STEPS] / self.budget)
            few = min(FEW, chosen.usual)
            chosen.most = round(few * (chosen.usual / few) ** share)
            chosen.most = max(chosen.most, len(chosen.best.returns) if chosen.best else 0)
        self.final = extract(BoundsNetwork(self.nets.actor, s.frequencies, self.rules), self.rules)
        if s.keep:
            self.selection.show(self.final)
        else:
            self.selection.replace(self.final)
        self.final_value = self.selection.last
        rng = np.random.default_rng([self.order, 1, int(at[ITERATION])])
        for k in range(s.draws if s.keep else 0):
            over = at[STEPS] + self.selection.steps - spent > 1.1 * self.budget
            if self.selection.steps < s.judging * at[STEPS] and not over:
                tree = self._drawn(k, rng)
                if not self.rules.parameterised or not self.selection.challenge(tree):
                    self.selection.show(tree)
        at[STEPS] += self.selection.steps - spent
        if self.selection.improved > improved:
            at[FOUND] = at[STEPS]
        met = self.selection.surely_above(self.problem.source.threshold)
        waited = (at[STEPS] - at[FOUND]) / self.budget
        enough = 2.0 * (1.0 - s.judging) * min(0.1, s.patience / 4)  # nothing is judged once a tree is perfect
        best = self.selection.best
        sure = best is not None and (not self.rules.parameterised or len(best.returns) == self.selection.most)
        if s.keep and met and sure and not self.selection.varying and waited > enough:
            self.message = self.message or "reward threshold met in all episodes, and no better tree since"
        elif s.keep and waited > s.patience and self.selection.asks:
            self.message = self.message or "no better tree for long"
        self.env.break_off()

    def _drawn(self, k: int, rng: np.random.Generator) -> Tree:
        """A tree near the greedy one: choices drawn; in the parameterised form also v and vectors alone.

        There every third one is drawn around the best tree instead, on one of several scales; two of three, once that
        does its most in most episodes.
        """
        policy, best = BoundsNetwork(self.nets.actor, self.settings.frequencies, self.rules, rng), self.selection.best
        policy.spread = self.nodes[0].knob[[SPREAD, ACTION_SPREAD]]
        around_best = k % 3 == 2 or (k % 3 == 1 and self.selection.nearly_perfect)
        if self.rules.parameterised and best is not None and around_best:
            return nearby(best.tree, self.rules, rng, policy.spread * 2.0 ** -rng.uniform(0.0, 4.0))
        policy.sampled = not self.rules.parameterised or k % 3 == 0
        return extract(policy, self.rules)

    def snapshot(self) -> Snapshot:
        """Where the run stands; everything in it is a copy."""
        best, final, now = self.selection.best, self.final, time.perf_counter()
        assert best is not None
        assert final is not None
        loss, gain, entropy, size = self.report.tolist()
        metrics = {
            "iteration": int(self.at[ITERATION]), "return": float(self.ended[0] / max(1.0, self.ended[1])),
            "tree_return": self.final_value, "depth": final.depth, "leaves": final.n_leaves,
            "best_depth": best.small.depth, "best_leaves": best.small.n_leaves, "best_leaves_raw": best.tree.n_leaves,
            "critic_loss": loss, "actor_loss": gain, "entropy": entropy, "advantage_size": size,
            "rows_per_second": self.learned / (now - self.clock),
        }  # fmt: skip
        self.ended[:], self.clock, self.learned = 0.0, now, 0
        state, steps = self._state(), self.surveyed + int(self.at[STEPS])
        return Snapshot(steps, best.tree, best.mean, self.budget, metrics, final, self.message, lambda: state)

    def _state(self) -> dict[str, np.ndarray]:
        data = {"at": self.at.copy(), "rng": self.rng.copy(), **to_arrays(self.nets), **self.selection.state()}
        return data | {name: array.copy() for name, array in self.env.arrays().items()}

    def _restore(self, state: dict[str, np.ndarray]) -> None:
        self.nets = from_arrays(self.nets, state)
        self.at[...], self.rng[...] = state["at"], state["rng"]
        self.selection.restore(state)
        for name, array in self.env.arrays().items():
            array[...] = state[name]
        self.env.resume()
