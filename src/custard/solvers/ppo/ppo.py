"""CUSTARD (PPO): an actor over bounds that is the tree, and an omniscient critic that trains it.

* The actor's input is s_w without s_b: the bounds. Its masked softmax pi(a | o) is the policy; extraction takes the
  largest output. In the parameterised form further outputs give the v of each feature's split; where base actions are
  vectors, others give the vector of a leaf.
* The critic Q_o is omniscient. The value of a base action does not depend on the bounds, so Q_o(s_b, .) is learned for
  base actions from base states (where actions are vectors, the vector is part of its input); the value of a split is
  zeta per split plus Q_o at the leaf which the greedy tree reaches behind it.

An iteration: compiled rollouts (`rollouts`) follow the policy in the environment, and traverse imagined nodes for every
base state met. Then one compiled JAX call (`update`) moves the critic to the merged agent's targets, and the actor by
PPO's clipped ratio, for all actions of a node at once. Every few iterations trees are extracted and judged.

`docs/explanation/ppo.md` says why, `docs/explanation/deviations.md` lists what differs from the paper.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from custard.core.errors import require_least, require_shares
from custard.core.threads import meanwhile
from custard.ibmdp.splits import PARAMETERISED, Rules
from custard.nn.checkpoints import from_arrays, to_arrays
from custard.nn.networks import make_network
from custard.solvers.common.bounds_survey import choose_bounds, default_splits
from custard.solvers.common.checkpoint import copy_arrays, restore_arrays
from custard.solvers.common.selection import LEARNING_BUDGET_SHARE, Selection
from custard.solvers.ppo import paper
from custard.solvers.ppo.paper import PaperSettings
from custard.solvers.ppo.policy import ExtractablePolicy, PolicyNetwork, perturb_tree
from custard.solvers.ppo.rollouts import Exploration, Rollouts, break_episodes, make_environments
from custard.solvers.ppo.update import ADAM, Networks, Schedule, UpdateConfig, improve, minibatch_order
from custard.task.problem import Problem, Snapshot
from custard.tree.extract import extract
from custard.tree.tree import Tree

__all__ = ["PRESETS", "SETTINGS", "Settings", "solve"]


@dataclass(frozen=True)
class Settings:
    """Settings of CUSTARD (PPO). The defaults are the preset "tuned"."""

    budget: int | None = None  # environment steps, judging included; None: 400,000, 200,000 where Python steps
    splits: Any = None  # p, thresholds per feature, or "parameterised"; None: that, or all cuts of whole numbers
    zeta: float | None = None  # the reward of a split; None: -0.01, or that share of rewards far from 1
    gamma_b: float | None = None  # discount of a base action; None: 1 where only terminations end episodes, else 0.99
    gamma_w: float = 1.0  # discount of a split
    trace: float = 0.8  # lambda of the critic's targets
    hidden: int = 64  # units in each of the two hidden layers of actor and critic
    frequencies: int = 0  # sines and cosines of each bound added to the actor's input
    critic_frequencies: int = 0  # sines and cosines of each feature added to the critic's input
    num_envs: int = 32  # environments side by side; at most 8 where Python steps them
    num_steps: int = 64  # rows per environment and iteration
    epochs: int = 4  # passes over an iteration's rows
    minibatches: int = 16  # per epoch
    learning_rate: float = 1e-3  # Adam, falling linearly to 0.3 of this
    clip: float = 0.2  # PPO's epsilon
    min_probability: float = 0.03  # probabilities are not pushed below this, falling to 0.001
    uniform_weight: float = 1.0  # 1: a node's actions weigh the same, 0: as their probabilities; falls to the next
    uniform_weight_end: float = 0.0  # `uniform_weight` at the budget's end
    epsilon: float = 0.9  # share of random splits in imagined traversals, falling to `epsilon_end`
    epsilon_end: float = 0.3  # the same at the budget's end
    split_spread: float = 1.0  # standard deviation of the logit of v, falling to a tenth (parameterised form)
    action_spread: float = 0.5  # standard deviation of action vectors, in halves of the width of their bounds
    exploring_share: float = 0.25  # share of the environments with random base actions, which train the critic only
    random_action_share: float = 0.2  # share of random base actions there, falling to this from 1
    warmup: float = 0.05  # share of the budget in which only the critic learns
    default_max_depth: int = 12  # depth limit where none is given
    greedy_share: float = 1.0  # share of the greedy tree's own actions in the environment at the end, rising from 0
    iterations_per_extraction: int = 2  # iterations between two extractions of trees
    sampled_trees: int = 4  # trees sampled from the stochastic policy and judged beside the greedy one
    max_judging_share: float = 0.5  # share of all steps that judging trees may take
    episodes: int | None = None  # selection episodes of the best tree; None: a 4,000th of the budget, 32 to 512
    margin: float = 1.0  # standard errors by which a smaller tree may be worse, and a larger one must be better
    patience: float = 0.4  # share of the budget without a better tree before stopping
    bootstrap_at_limit: bool = True  # a truncated episode's last state keeps its value; False: nothing follows
    keep_best: bool = True  # return the best tree judged; False: the last one
    low: Any = None  # lower bounds of the features, where the environment's own do not suit
    high: Any = None  # upper bounds of the features

    def __post_init__(self) -> None:
        require_least(self, 1, "num_envs", "num_steps", "epochs", "minibatches", "default_max_depth", "episodes")
        require_least(self, 1, "iterations_per_extraction")
        require_least(self, 0, "hidden", "frequencies", "critic_frequencies", "learning_rate", "clip", "split_spread")
        require_least(self, 0, "action_spread", "sampled_trees", "margin", "patience")
        require_shares(self, "trace", "min_probability", "uniform_weight", "uniform_weight_end", "warmup")
        require_shares(self, "epsilon", "epsilon_end", "exploring_share", "random_action_share")
        require_shares(self, "greedy_share", "max_judging_share")


_POTHOLE = {"zeta": -0.01, "gamma_b": 0.5, "trace": 0.0, "frequencies": 7, "critic_frequencies": 9, "splits": 3,
            "random_action_share": 1.0, "epsilon_end": 0.9, "uniform_weight_end": 1.0, "sampled_trees": 1}  # fmt: skip

PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "tuned": {
        # Judging costs many steps here and hardly any time, and only many episodes show the last rare failures. Runs
        # end long before the budget does: with a larger `warmup` most would end before the actor learns.
        "CartPole": {"low": [-2.0, -2.0, -0.14, -1.4], "high": [2.0, 2.0, 0.14, 1.4], "budget": 80_000_000,
                     "zeta": -0.01, "gamma_b": 0.997, "learning_rate": 3e-4, "max_judging_share": 0.99,
                     "sampled_trees": 24, "margin": 0.0, "episodes": 2000, "patience": 1.0, "warmup": 0.0005},
        "PrereqWorld": {"zeta": -0.01},
        "PotholeWorld": _POTHOLE,
        "Pendulum": {"zeta": -0.01, "budget": 2_000_000, "default_max_depth": 5},
    },
    "paper": paper.PRESETS,
}  # fmt: skip

SETTINGS = {"paper": PaperSettings}

NATIVE_BUDGET, PYTHON_BUDGET = 400_000, 200_000  # environment steps
DEFAULT_ZETA = -0.01  # in rewards of their usual size
MIN_JUDGING_EPISODES, MAX_JUDGING_EPISODES = 32, 512  # that judge the best tree, where the settings do not say
BUDGET_PER_JUDGING_EPISODE = 4000  # of the budget, for each of these
MIN_ITERATIONS = 20  # however small the budget: iterations have fewer rows then
FINAL_MIN_PROBABILITY, FINAL_LEARNING_RATE_SHARE, FINAL_OUTPUT_SPREAD_SHARE = 0.001, 0.3, 0.1
RANDOM_ACTIONS_FALL_BUDGET_SHARE = 0.3  # in which random base actions fall to `random_action_share`
GREEDY_ACTIONS_RISE_BUDGET_SHARE = 0.5  # in which the greedy tree's own actions rise to `greedy_share`
ACTOR_OUTPUT_GAIN, CRITIC_OUTPUT_GAIN = 0.01, 0.1  # of the last layers' initial weights


def solve(
    problem: Problem, settings: Settings | PaperSettings, state: dict[str, np.ndarray] | None = None
) -> Iterator[Snapshot]:
    """Learn in iterations; yield the best tree so far whenever trees were judged."""
    if isinstance(settings, PaperSettings):
        yield from paper.solve(problem, settings, state)
        return
    learner = Learner(problem, settings, state)
    while not learner.message:
        if learner.advance():
            yield learner.snapshot()


def rules_for(problem: Problem, s: Settings, budget: int) -> tuple[Rules, int]:
    """Return the IBMDP, and the environment steps it took to see where features lie and what episodes are like."""
    features, survey_steps = choose_bounds(problem, problem.seeds("bounds")["bounds"], budget)
    gamma_b = problem.default_gamma_b if s.gamma_b is None else s.gamma_b
    zeta = DEFAULT_ZETA if s.zeta is None else s.zeta / problem.reward_scale
    depth = problem.max_depth if problem.max_depth is not None else s.default_max_depth
    has_whole_features = features.integer.all() and problem.base.actions.discrete
    splits = s.splits or (default_splits(features) if has_whole_features else PARAMETERISED)
    rules = Rules(features, problem.base.actions, splits, zeta, gamma_b, s.gamma_w, depth)
    return rules, survey_steps + problem.probe_steps


def schedule_at(s: Settings, progress: float) -> Schedule:
    """Return the learning settings after a share `progress` of the budget."""

    def between(start: float, end: float) -> float:
        return start + (end - start) * progress

    rate = s.learning_rate * between(1.0, FINAL_LEARNING_RATE_SHARE)
    floor = np.exp(between(np.log(s.min_probability), np.log(min(s.min_probability, FINAL_MIN_PROBABILITY))))
    spread = between(1.0, FINAL_OUTPUT_SPREAD_SHARE)
    return Schedule(
        critic_rate=rate,
        actor_rate=rate if progress >= s.warmup else 0.0,
        log_floor=np.log(floor),
        uniform_weight=between(s.uniform_weight, s.uniform_weight_end),
        v_spread=s.split_spread * spread,
        vector_spread=s.action_spread * spread,
    )


def exploration_at(s: Settings, progress: float, is_exploring: np.ndarray) -> Exploration:
    """Return how rollouts explore after a share `progress` of the budget; `is_exploring` [environments]."""
    last = s.random_action_share
    random = max(last, 1.0 + (last - 1.0) * progress / RANDOM_ACTIONS_FALL_BUDGET_SHARE) if last < 1.0 else 1.0
    return Exploration(
        epsilon=s.epsilon + (s.epsilon_end - s.epsilon) * progress,
        greedy_share=s.greedy_share * min(1.0, progress / GREEDY_ACTIONS_RISE_BUDGET_SHARE),
        random_shares=np.where(is_exploring, random, 0.0),
    )


class Learner:
    """One run: the networks, the environments, the selection of trees, and its progress."""

    def __init__(self, problem: Problem, settings: Settings, state: dict[str, np.ndarray] | None = None) -> None:
        self.problem, self.settings = problem, settings
        s, seeds = settings, problem.seeds("learner", "environment")
        self.budget = s.budget or (NATIVE_BUDGET if problem.is_compiled else PYTHON_BUDGET)
        self.rules, self.survey_steps = rules_for(problem, s, self.budget)
        self.config = UpdateConfig(
            self.rules.zeta, self.rules.gamma_b, s.gamma_w, s.trace, s.clip, s.frequencies, s.critic_frequencies,
            self.rules.parameterised,
        )  # fmt: skip
        self.seed = seeds["learner"]
        self.nets = self._make_networks(np.random.default_rng(self.seed))
        self.policy = PolicyNetwork(_numpy_copies(self.nets.actor), s.frequencies)

        envs = make_environments(
            problem.with_scaled_rewards, s.num_envs, seeds["environment"], not s.bootstrap_at_limit
        )
        count, one_per_minibatch = len(envs.x), -(-s.minibatches // len(envs.x))
        rows_per_env = min(s.num_steps, max(one_per_minibatch, self.budget // (MIN_ITERATIONS * count)))
        self.rollouts = Rollouts(self.rules, envs, self.nets.actor, s.frequencies, rows_per_env, self.seed)
        at_least = min(count - 1, s.exploring_share > 0)
        self.is_exploring = np.arange(count) < max(round(s.exploring_share * count), at_least)

        episodes = s.episodes or int(
            np.clip(self.budget // BUDGET_PER_JUDGING_EPISODE, MIN_JUDGING_EPISODES, MAX_JUDGING_EPISODES)
        )
        self.selection = Selection(problem, episodes, margin=s.margin, budget=self.budget)
        self.greedy_tree: Tree | None = None
        self.greedy_return = float("nan")

        self.steps = self.iteration = self.steps_at_best = 0
        self.message = ""  # why the run ended
        self.is_compiled = False
        self.report, self.rows_learned, self.clock = np.zeros(4), 0, time.perf_counter()
        if state is not None:
            self._restore(state)

    def _make_networks(self, rng: np.random.Generator) -> Networks:
        s, n, n_base = self.settings, self.rules.features.n, self.rules.n_base
        n_vector = 0 if self.rules.actions.discrete else self.rules.actions.size
        n_outputs = self.rules.n_actions + (n if self.rules.parameterised else 0) + n_vector
        hidden = (s.hidden,) * 2 if s.hidden else ()
        actor = make_network(rng, (2 * n * (1 + 2 * s.frequencies), *hidden, n_outputs), last=ACTOR_OUTPUT_GAIN)
        critic_inputs = n * (1 + 2 * s.critic_frequencies) + n_vector
        critic = make_network(rng, (critic_inputs, *hidden, 1 + n_base), last=CRITIC_OUTPUT_GAIN)
        target_scale = np.array([0.0, 1.0, 1.0], dtype=np.float32)
        return Networks(actor, critic, ADAM.init(actor), ADAM.init(critic), target_scale)  # type: ignore[arg-type]

    def advance(self) -> bool:
        """Run one iteration: rollouts, update and, every few of them, trees; return whether trees were judged."""
        s, rollouts = self.settings, self.rollouts
        progress = min(1.0, self.steps / self.budget)
        schedule, exploration = schedule_at(s, progress), exploration_at(s, progress, self.is_exploring)
        self.policy = self.policy._replace(v_spread=schedule.v_spread, vector_spread=schedule.vector_spread)
        n_rows = rollouts.rows.has_action.size
        rng = np.random.default_rng([self.seed, self.iteration])
        order = minibatch_order(rng, n_rows, 2 * s.epochs, s.minibatches).reshape(2, s.epochs * s.minibatches, -1)
        learning = self.nets, rollouts.rows, order, schedule, self.config
        with nullcontext() if self.is_compiled else meanwhile(improve, *learning):
            taken = rollouts.collect(self.policy, exploration)
        self.steps += taken
        self.nets, report = improve(*learning)
        self.policy = self.policy._replace(weights=_numpy_copies(self.nets.actor))
        self.report, self.is_compiled = np.asarray(report), True
        self.rows_learned += n_rows
        self.iteration += 1
        used = self.survey_steps + self.steps
        allows_another = used + taken <= self.budget  # which takes about as many steps
        if used >= LEARNING_BUDGET_SHARE * self.budget or not allows_another:
            self.message = "budget used"
        elif self.iteration % s.iterations_per_extraction or not self._can_afford_judging():
            return False
        self._judge_trees()
        return True

    def _can_afford_judging(self) -> bool:
        """Return whether judging has steps left: at first, trees that never end an episode would use them all."""
        is_first = self.selection.best is None
        return is_first or self.selection.steps <= self.settings.max_judging_share * self.steps

    def _judge_trees(self) -> None:
        """Judge the greedy tree and sampled ones, and decide whether to stop."""
        s, selection = self.settings, self.selection
        steps_before, improved_before = selection.steps, selection.n_improvements
        selection.spent = self.survey_steps + self.steps - selection.steps
        if self.rules.parameterised:
            self._set_judging_episodes()
        self.greedy_tree = extract(ExtractablePolicy(self.policy, self.rules), self.rules)
        selection.judge(self.greedy_tree, s.keep_best)
        self.greedy_return = selection.last_mean
        rng = np.random.default_rng([self.seed, 1, self.iteration])
        for k in range(s.sampled_trees if s.keep_best else 0):
            is_overdrawn = selection.spent + selection.steps >= self.budget
            if selection.steps < s.max_judging_share * self.steps and not is_overdrawn:
                tree = self._sample_tree(k, rng)
                if not self.rules.parameterised or not selection.challenge(tree):
                    selection.consider(tree)
        self.steps += selection.steps - steps_before
        if selection.n_improvements > improved_before:
            self.steps_at_best = self.steps
        if s.keep_best and not self.message:
            self.message = self._stop_reason()
        break_episodes(self.rollouts.envs)

    def _set_judging_episodes(self) -> None:
        """Judge trees on few episodes at first and on ever more later: many are sampled, and few may rank them."""
        selection, share = self.selection, min(1.0, 2.0 * self.steps / self.budget)
        first = min(MIN_JUDGING_EPISODES, selection.usual_max_episodes)
        selection.max_episodes = round(first * (selection.usual_max_episodes / first) ** share)
        selection.max_episodes = max(selection.max_episodes, len(selection.best.returns) if selection.best else 0)

    def _sample_tree(self, k: int, rng: np.random.Generator) -> Tree:
        """Return the k-th sample near the greedy tree: other actions; in the parameterised form also other v alone.

        There every third one is sampled around the best tree instead, on one of several scales; two of three, once that
        one has its highest return in most episodes.
        """
        best = self.selection.best
        is_around_best = k % 3 == 2 or (k % 3 == 1 and self.selection.is_nearly_perfect)
        if self.rules.parameterised and best is not None and is_around_best:
            scale = 2.0 ** -rng.uniform(0.0, 4.0)
            spreads = self.policy.v_spread * scale, self.policy.vector_spread * scale
            return perturb_tree(best.tree, self.rules, rng, *spreads)
        samples_actions = not self.rules.parameterised or k % 3 == 0
        return extract(ExtractablePolicy(self.policy, self.rules, rng, samples_actions), self.rules)

    def _stop_reason(self) -> str:
        """Return why to stop before the budget is used, or nothing."""
        waited = (self.steps - self.steps_at_best) / self.budget
        if self._meets_threshold and waited > self._min_wait_share:
            return "reward threshold met in all episodes, and no better tree since"
        if waited > self.settings.patience and self.selection.best_has_splits:
            return "no better tree for long"
        return ""

    @property
    def _min_wait_share(self) -> float:
        """The share of the budget without a better tree that ends the run once the threshold is met."""
        # Nothing is judged once a tree is perfect.
        return 2.0 * (1.0 - self.settings.max_judging_share) * min(0.1, self.settings.patience / 4)

    @property
    def _meets_threshold(self) -> bool:
        """Whether the best tree meets the reward threshold in all its episodes."""
        selection, best = self.selection, self.selection.best
        is_fully_judged = best is not None and (
            not self.rules.parameterised or len(best.returns) == selection.max_episodes
        )
        meets_threshold = selection.clearly_reaches(self.problem.source.reward_threshold)
        return meets_threshold and is_fully_judged and not selection.best_varies

    def _end_without_progress(self) -> float:
        """Return the steps at which the run ends without a better tree."""
        if not self.settings.keep_best or not (self._meets_threshold or self.selection.best_has_splits):
            return self.budget
        wait = self._min_wait_share if self._meets_threshold else self.settings.patience
        return self.survey_steps + self.steps_at_best + wait * self.budget

    def snapshot(self) -> Snapshot:
        """Return where the run stands; everything in it is a copy."""
        best, greedy, seconds = self.selection.best, self.greedy_tree, time.perf_counter()
        assert best is not None
        assert greedy is not None
        critic_loss, actor_loss, entropy, advantage_size = self.report.tolist()
        finished = self.rollouts.finished
        metrics = {
            "iteration": self.iteration, "return": float(finished[0] / max(1.0, finished[1])),
            "tree_return": self.greedy_return, "depth": greedy.depth, "leaves": greedy.n_leaves,
            "best_depth": best.simplified.depth, "best_leaves": best.simplified.n_leaves,
            "best_leaves_raw": best.tree.n_leaves, "critic_loss": critic_loss, "actor_loss": actor_loss,
            "entropy": entropy, "advantage_size": advantage_size,
            "rows_per_second": self.rows_learned / (seconds - self.clock),
        }  # fmt: skip
        finished[:], self.clock, self.rows_learned = 0.0, seconds, 0
        value = self.selection.show(is_last=bool(self.message))
        state, shown_steps = self._state(), self.selection.shown_steps
        return Snapshot(
            self.survey_steps + self.steps + shown_steps, best.tree, value, self.budget, metrics, greedy,
            self.message, lambda: state, end_without_progress=self._end_without_progress() + shown_steps,
        )  # fmt: skip

    def _state(self) -> dict[str, np.ndarray]:
        counts = np.array([self.steps, self.iteration, self.steps_at_best])
        arrays = copy_arrays(self.rollouts.arrays())
        return {"counts": counts, **to_arrays(self.nets), **self.selection.state(), **arrays}

    def _restore(self, state: dict[str, np.ndarray]) -> None:
        self.steps, self.iteration, self.steps_at_best = (int(number) for number in state["counts"])
        self.nets = from_arrays(self.nets, state)
        self.policy = self.policy._replace(weights=_numpy_copies(self.nets.actor))
        self.selection.restore(state)
        restore_arrays(self.rollouts.arrays(), state)


def _numpy_copies(weights: Any) -> tuple[np.ndarray, ...]:
    """Return copies that compiled code may read."""
    return tuple(np.array(w) for w in weights)
