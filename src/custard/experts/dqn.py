"""A DQN expert on the base MDP: double, dueling, many environments side by side, the best checkpoint kept.

Many updates are one compiled call. Training needs the extra "neural" (jax, optax); the `Network` that comes out is
NumPy.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from custard.core.errors import CustardError
from custard.core.features import Features
from custard.core.files import load_arrays, write_atomically
from custard.experts.expert import Expert, Progress, from_q_function
from custard.experts.transitions import CompiledSteps, PythonSteps
from custard.nn import networks
from custard.nn.replay import Replay
from custard.task.probe import reward_scale_of
from custard.task.problem import Problem
from custard.task.runners import run_episodes
from custard.task.source import episode_seeds

__all__ = ["PRESETS", "Network", "Settings", "expert_of", "train"]


@dataclass(frozen=True)
class Settings:
    """How the expert is trained."""

    steps: int = 100_000  # environment steps of training
    num_envs: int = 32  # environments side by side (at most 8 where they are not compiled)
    hidden: int = 128  # units in each of the two hidden layers
    standardise: bool = False  # scale bounded features, too, and rewards by their spread under random actions
    frequencies: int = 0  # sines and cosines of each feature added to the input (`networks.encode`)
    gamma: float = 0.99  # discount
    learning_rate: float = 1e-3  # Adam, decaying linearly to a tenth
    batch: int = 128  # transitions per update
    steps_per_update: float = 4.0  # environment steps per update
    buffer: int = 200_000  # transitions in the replay memory
    warmup: int = 2_000  # random steps before the first update
    exploration: float = 0.3  # share of the steps over which epsilon falls from 1 to its end
    epsilon: float = 0.05  # epsilon at its end
    target_every: int = 1  # updates between moves of the target network
    tau: float = 0.01  # how far the target network moves
    double: bool = True  # double DQN targets
    bootstrap_at_limit: bool = True  # a time limit is not a termination
    checks: int = 25  # how often the greedy policy is judged; the best checkpoint is kept
    check_rollouts: int = 50  # rollouts per check
    check_steps: int | None = None  # steps per rollout of a check, at most
    max_judging_share: float | None = None  # steps of checks per step of training, above which checks are left out


#: "paper": Stable Baselines' own defaults, as the paper says it used, with the paper's numbers of steps.
PRESETS: dict[str, dict[str, dict[str, Any]]] = {
    "tuned": {
        "": {},
        "CartPole": {"steps": 100_000, "check_rollouts": 200},
        "PrereqWorld": {"steps": 100_000, "gamma": 0.98, "steps_per_update": 8.0},
        "PotholeWorld": {"steps": 1_000_000, "frequencies": 9, "gamma": 0.9, "steps_per_update": 100.0,
                         "buffer": 1_000_000, "batch": 512, "num_envs": 200, "epsilon": 0.3, "checks": 20,
                         "check_rollouts": 100},
    },
    "paper": {
        "": {"num_envs": 1, "hidden": 64, "learning_rate": 5e-4, "batch": 32, "steps_per_update": 1.0,
             "buffer": 50_000, "warmup": 1000, "exploration": 0.1, "epsilon": 0.02, "target_every": 500, "tau": 1.0},
        "CartPole": {"steps": 100_000}, "PrereqWorld": {"steps": 100_000}, "PotholeWorld": {"steps": 1_000_000},
    },
}  # fmt: skip


MIN_UPDATES_PER_COMPILED_CALL = 8
MIN_ENV_STEPS_PER_COMPILED_CALL = 32  # if that makes more updates
MAX_GRADIENT_NORM = 10.0


def q_values(weights: tuple[Any, ...], inputs: Any, relu: Callable[[Any], Any]) -> Any:
    """Return the Q-values [B, A] of encoded inputs, in NumPy or JAX; `weights` as in `Network`.

    Not `networks.forward`: value and advantage, weights and biases are separate arrays here. Joined ones would round
    differently (products, and the norm of gradients), so that the same seed would train another expert.
    """
    w1, b1, w2, b2, wv, bv, wa, ba = weights
    h = relu(inputs @ w1 + b1)
    h = relu(h @ w2 + b2)
    return networks.dueling_heads(h @ wv + bv, h @ wa + ba)


def encode(x: np.ndarray, shift: np.ndarray, scale: np.ndarray, frequencies: int) -> np.ndarray:
    """Return the network's input, float32: scaled features, and their sines and cosines."""
    return networks.encode(((x - shift) / scale).astype(np.float32), frequencies)


@dataclass(frozen=True)
class Network:
    """The trained Q-function: two rectified layers, then value and advantages."""

    shift: np.ndarray  # [n], what is subtracted from the features
    scale: np.ndarray  # [n], what they are then divided by
    frequencies: int  # of the encoding
    weights: tuple[np.ndarray, ...]  # W1, b1, W2, b2, Wv, bv, Wa, ba

    def q(self, x: np.ndarray) -> np.ndarray:
        """Return the Q-values of feature vectors, [B, n] -> [B, A] float64."""
        inputs = encode(np.asarray(x), self.shift, self.scale, self.frequencies)
        return q_values(self.weights, inputs, networks.relu).astype(np.float64)

    @property
    def advantage_layers(self) -> networks.Weights:
        """The layers up to the advantages, all that the best action depends on, as `networks.evaluate` takes them."""
        w1, b1, w2, b2, _, _, wa, ba = self.weights
        return tuple(np.concatenate([w, b[None]]) for w, b in ((w1, b1), (w2, b2), (wa, ba)))

    def save(self, path: str | Path) -> None:
        """Write the network as npz."""
        buffer = io.BytesIO()
        arrays: dict[str, Any] = {f"w{i}": w for i, w in enumerate(self.weights)}
        np.savez(
            buffer, format="custard-dqn", shift=self.shift, scale=self.scale, frequencies=self.frequencies, **arrays
        )  # type: ignore[arg-type]
        write_atomically(path, buffer.getvalue())

    @classmethod
    def load(cls, path: str | Path) -> Network:
        """Read a network that `save` wrote."""
        try:
            data = load_arrays(path)
            if str(data["format"]) != "custard-dqn":
                raise KeyError("format")
            weights = tuple(data[f"w{i}"] for i in range(8))
            return cls(data["shift"], data["scale"], int(data["frequencies"]), weights)
        except OSError as error:
            raise CustardError(f"cannot read {path}: {error.strerror or error}") from None
        except (KeyError, ValueError, TypeError):
            raise CustardError(f"{path} is not a Q-network saved by custard") from None


def expert_of(network: Network, n_actions: int, name: str) -> Expert:
    """Return the expert that acts greedily by a network."""
    return from_q_function(network.q, n_actions, name, network.save)


def train(problem: Problem, settings: Settings, seed: int) -> Iterator[Progress]:
    """Train; yield at each check. The last item holds the best expert."""
    problem.require_discrete_actions("a DQN expert")
    features, n, n_actions = problem.base.features, problem.base.features.n, problem.base.actions.n
    improve, learned = _compile_updates(settings, n, n_actions, seed)
    rng = np.random.default_rng(seed)
    kind = CompiledSteps if problem.is_compiled else PythonSteps
    envs = kind(problem, settings.num_envs, rng, settings.bootstrap_at_limit)
    number = np.zeros((), np.float32)
    row: dict[str, Any] = {
        "x": np.zeros(n), "action": np.zeros((), np.int32), "reward": number, "after": np.zeros(n), "ended": number,
    }  # fmt: skip
    memory = Replay(min(settings.buffer, settings.steps), row)
    check_seeds = episode_seeds(int(rng.integers(2**31)), settings.check_rollouts)
    network: Network | None = None  # until there are enough random steps to scale the features by
    best = Progress(0, -np.inf, None)
    steps = check_steps = checks = 0
    updates_per_call = max(
        MIN_UPDATES_PER_COMPILED_CALL, round(MIN_ENV_STEPS_PER_COMPILED_CALL / settings.steps_per_update)
    )
    updates_due = 0.0
    while steps < settings.steps:
        falling = 1.0 - (1.0 - settings.epsilon) * steps / (settings.exploration * settings.steps)
        epsilon = max(settings.epsilon, falling)
        rounds = max(1, int((updates_per_call - updates_due) * settings.steps_per_update / envs.count))
        memory.add(envs.collect(network, epsilon, rounds)._asdict())
        steps += rounds * envs.count
        if network is None and steps >= min(settings.warmup, settings.steps // 2):
            scaling = _feature_scaling(features, memory.columns["x"][: memory.filled], settings.standardise)
            unit = reward_scale_of(memory.columns["reward"][: memory.filled]) if settings.standardise else 1.0
            network = _learned_network(learned, scaling, settings.frequencies, unit)
        if network is None:
            continue
        updates_due += rounds * envs.count / settings.steps_per_update
        if updates_due >= updates_per_call:
            rows = memory.sample(rng, updates_per_call * settings.batch)
            rows["reward"] /= unit
            learned = improve(learned, *_minibatches(rows, settings.batch, *scaling, settings.frequencies))
            network = _learned_network(learned, scaling, settings.frequencies, unit)
            updates_due -= updates_per_call
        if steps >= settings.steps * (checks + 1) / settings.checks:
            checks += 1
            share = settings.max_judging_share
            if share is not None and check_steps > share * steps and steps < settings.steps:
                continue
            mean, used = _mean_greedy_return(problem, network, check_seeds, settings.check_steps)
            check_steps += used
            if mean >= best.value:  # a later checkpoint of the same return has the better Q-values
                best = Progress(0, mean, expert_of(network, n_actions, f"DQN, return {mean:.2f}"))
            yield replace(best, steps=steps + check_steps)
    envs.close()


def _mean_greedy_return(
    problem: Problem, network: Network, seeds: np.ndarray, max_steps: int | None
) -> tuple[float, int]:
    """Return the mean return of the greedy policy over one rollout per seed, and the steps they took."""
    start = problem.base.actions.start
    returns, lengths, *_ = run_episodes(
        lambda x: network.q(x).argmax(axis=1) + start, problem.source, seeds, features=problem.encoder,
        max_steps=max_steps,
    )  # fmt: skip
    return float(returns.mean()), int(lengths.sum())


def _learned_network(learned: Any, scaling: tuple[np.ndarray, np.ndarray], frequencies: int, unit: float) -> Network:
    """Return the network learned so far; its values are in the environment's own rewards, `unit` times the learned."""
    *hidden, wv, bv, wa, ba = (np.asarray(w) for w in learned[0])
    return Network(*scaling, frequencies, (*hidden, *(np.float32(unit) * w for w in (wv, bv, wa, ba))))


def _minibatches(rows: dict[str, np.ndarray], batch: int, *encoding: Any) -> tuple[np.ndarray, ...]:
    """Return replayed rows as the minibatches of one compiled call, each array [updates, batch, …]."""
    x, after = (encode(rows[name], *encoding) for name in ("x", "after"))
    columns = (x, rows["action"], rows["reward"], after, rows["ended"])
    return tuple(column.reshape(-1, batch, *column.shape[1:]) for column in columns)


def _feature_scaling(features: Features, x: np.ndarray, standardise: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return what is subtracted from features and what they are divided by.

    Bounded features are scaled to [-1, 1], the others to mean 0 and deviation 1/2 in the states x [N, n] that random
    actions visited. With `standardise` bounded ones are, too, unless that is less than a twentieth of their range.
    """
    mean, deviation = x.mean(axis=0), np.maximum(x.std(axis=0), 1e-6)
    with np.errstate(over="ignore", invalid="ignore"):
        middle, half = features.low / 2 + features.high / 2, features.high / 2 - features.low / 2
        half = np.where(half > 0, half, 1.0)
        narrow = np.clip(2 * deviation, half / 20, half)
    unbounded = features.unbounded
    if standardise:
        return mean, np.where(unbounded, 2 * deviation, narrow)
    return np.where(unbounded, mean, middle), np.where(unbounded, 2 * deviation, half)


def _compile_updates(settings: Settings, n: int, n_actions: int, seed: int) -> tuple[Any, Any]:
    """Return the compiled updates, and what they learn: weights, target weights, optimiser state, number of updates."""
    try:
        import jax
        import jax.numpy as jnp
        import optax
    except ImportError:
        raise CustardError('the DQN expert needs jax and optax: pip install "custard-rl[neural]"') from None
    hidden, inputs = settings.hidden, n * (1 + 2 * settings.frequencies)
    rng = np.random.default_rng([seed, 1])
    initial: list[Any] = []
    for fan_in, fan_out in ((inputs, hidden), (hidden, hidden), (hidden, 1), (hidden, n_actions)):
        bound = np.sqrt(1.0 / fan_in)
        initial.append(jnp.asarray(rng.uniform(-bound, bound, (fan_in, fan_out)), dtype=jnp.float32))
        initial.append(jnp.zeros(fan_out, dtype=jnp.float32))
    total = max(1, int(settings.steps / settings.steps_per_update))
    rate = optax.linear_schedule(settings.learning_rate, settings.learning_rate / 10, total)
    optimiser = optax.chain(optax.clip_by_global_norm(MAX_GRADIENT_NORM), optax.adam(rate))

    def q(weights: Any, inputs: Any) -> Any:
        return q_values(weights, inputs, jax.nn.relu)

    def update(learned: Any, batch: Any) -> tuple[Any, None]:
        weights, target, moments, number = learned
        x, action, reward, after, ended = batch
        q_target = q(target, after)
        best = q(weights, after).argmax(axis=1) if settings.double else q_target.argmax(axis=1)
        goal = reward + settings.gamma * (1.0 - ended) * q_target[jnp.arange(len(action)), best]

        def loss(weights: Any) -> Any:
            # Squared, not Huber's: that follows the median, which forgets the rare step at which an episode ends.
            return optax.l2_loss(q(weights, x)[jnp.arange(len(action)), action], goal).mean()

        change, moments = optimiser.update(jax.grad(loss)(weights), moments, weights)
        weights = optax.apply_updates(weights, change)
        number += 1
        move = settings.tau * (number % settings.target_every == 0)
        target = jax.tree.map(lambda t, w: t + move * (w - t), target, weights)
        return (weights, target, moments, number), None

    improve = jax.jit(lambda learned, *batches: jax.lax.scan(update, learned, batches)[0])
    weights = tuple(initial)
    return improve, (weights, weights, optimiser.init(weights), jnp.zeros((), dtype=jnp.int32))
