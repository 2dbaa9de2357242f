"""A DQN expert on the base MDP, for VIPER: double, dueling, many environments at once, best checkpoint kept.

Steps come from `transitions`; a whole run of updates is one compiled call. Needs the extra "neural" (jax, optax). What
comes out needs neither: `Network` is NumPy.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from custard.core.errors import CustardError
from custard.core.features import Features
from custard.core.files import write_atomically
from custard.experts.transitions import Compiled, Stepped
from custard.nn.replay import Replay
from custard.task.evaluate import rollouts
from custard.task.probe import unit_of
from custard.task.problem import Problem
from custard.task.source import episode_seeds

__all__ = ["PRESETS", "Network", "Progress", "Settings", "train"]


@dataclass(frozen=True)
class Settings:
    """How the expert is trained."""

    steps: int = 100_000  # environment steps of training
    num_envs: int = 32  # environments side by side (at most 8 where they are not compiled)
    hidden: int = 128  # units in each of the two hidden layers
    standardise: bool = False  # scale bounded features too by what random behaviour showed, and rewards
    frequencies: int = 0  # sines and cosines of each feature added to the input, at 1, 2, 4, … half waves
    gamma: float = 0.99  # discount
    learning_rate: float = 1e-3  # Adam, decaying linearly to a tenth
    batch: int = 128  # transitions in an update
    steps_per_update: float = 4.0  # environment steps for each update
    buffer: int = 200_000  # transitions remembered
    warmup: int = 2_000  # random steps before the first update
    exploration: float = 0.3  # share of the steps over which epsilon falls from 1 to its end
    epsilon: float = 0.05  # epsilon at its end
    target_every: int = 1  # updates between moves of the target network
    tau: float = 0.01  # how far it moves
    double: bool = True  # double DQN targets
    bootstrap_at_limit: bool = True  # a time limit is not a termination
    checks: int = 25  # times the greedy policy is judged; the best checkpoint is kept
    check_rollouts: int = 50  # rollouts for judging
    check_steps: int | None = None  # steps of each at the most
    judging: float | None = None  # steps of rollouts for one of training: more, and a check is left out; None: any


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


@dataclass(frozen=True)
class Network:
    """The trained Q-function: two rectified layers, then value and advantages."""

    shift: np.ndarray  # [n], what is subtracted from the features
    scale: np.ndarray  # [n], what they are then divided by
    frequencies: int
    weights: tuple[np.ndarray, ...]  # W1, b1, W2, b2, Wv, bv, Wa, ba

    def q(self, x: np.ndarray) -> np.ndarray:
        """Q-values of a batch of feature vectors, [B, n] -> [B, A] float64."""
        w1, b1, w2, b2, wv, bv, wa, ba = self.weights
        h = encode(np.asarray(x), self.shift, self.scale, self.frequencies)
        h = np.maximum(h @ w1 + b1, 0.0)
        h = np.maximum(h @ w2 + b2, 0.0)
        advantage = h @ wa + ba
        return (h @ wv + bv + advantage - advantage.mean(axis=1, keepdims=True)).astype(np.float64)

    @property
    def advantage(self) -> tuple[np.ndarray, ...]:
        """Layers, each with its biases as the last row, up to the advantages: all that the best action depends on."""
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
            with np.load(path, allow_pickle=False) as data:
                if str(data["format"]) != "custard-dqn":
                    raise KeyError("format")
                weights = tuple(data[f"w{i}"] for i in range(8))
                return cls(data["shift"], data["scale"], int(data["frequencies"]), weights)
        except OSError as error:
            raise CustardError(f"cannot read {path}: {error.strerror or error}") from None
        except (KeyError, ValueError, EOFError):
            raise CustardError(f"{path} is not a Q-network saved by custard") from None


@dataclass(frozen=True)
class Progress:
    """Where training stands."""

    steps: int  # environment steps, judging included
    value: float  # mean return of the best checkpoint
    best: Network | None


def encode(x: np.ndarray, shift: np.ndarray, scale: np.ndarray, frequencies: int) -> np.ndarray:
    """The network's input, float32: scaled features, and their sines and cosines."""
    z = ((x - shift) / scale).astype(np.float32)
    waves = [np.float32(np.pi * 2.0**k) * z for k in range(frequencies)]
    return np.concatenate([z, *(f(w) for w in waves for f in (np.sin, np.cos))], axis=1) if waves else z


def train(problem: Problem, settings: Settings, seed: int) -> Iterator[Progress]:
    """Train, yielding at each check; the last item holds the best network."""
    problem.require_discrete_actions("a DQN expert")
    improve, state = _compiled(settings, problem.base.features.n, problem.base.actions.n, seed)
    rng = np.random.default_rng(seed)
    where, start = problem.source, problem.base.actions.start
    actor = (Compiled if problem.native else Stepped)(problem, settings.num_envs, rng)
    row, number = np.zeros(problem.base.features.n), np.zeros((), np.float32)
    fields: dict[str, Any] = {
        "x": row,
        "action": np.zeros((), np.int32),
        "reward": number,
        "after": row,
        "ended": number,
    }
    memory = Replay(min(settings.buffer, settings.steps), fields)
    check_seeds = episode_seeds(int(rng.integers(2**31)), settings.check_rollouts)
    network: Network | None = None  # until enough random steps are there to scale the features by
    best: tuple[float, Network | None] = (-np.inf, None)
    steps = extra = checked = 0
    updates = max(UPDATES, round(STALE / settings.steps_per_update))  # in one compiled call
    owed = 0.0
    while steps < settings.steps:
        epsilon = max(
            settings.epsilon, 1.0 - (1.0 - settings.epsilon) * steps / (settings.exploration * settings.steps)
        )
        rounds = max(1, int((updates - owed) * settings.steps_per_update / actor.count))  # until the next updates
        new = actor.run(rounds, network, epsilon)
        ended = new.terminated | (new.truncated if not settings.bootstrap_at_limit else False)
        memory.add({"x": new.x, "action": new.action, "reward": new.reward, "after": new.after, "ended": ended})
        steps += rounds * actor.count
        if network is None and steps >= min(settings.warmup, settings.steps // 2):
            how = _scaling(problem.base.features, memory.columns["x"][: memory.filled], settings.standardise)
            unit = unit_of(memory.columns["reward"][: memory.filled]) if settings.standardise else 1.0
            network = _network(how, settings, state, unit)
        if network is None:
            continue
        owed += rounds * actor.count / settings.steps_per_update
        if owed >= updates:
            rows = memory.sample(rng, updates * settings.batch)
            rows["reward"] /= unit
            state = improve(state, *_batches(rows, settings.batch, *how, settings.frequencies))
            network = _network(how, settings, state, unit)
            owed -= updates
        if steps >= settings.steps * (checked + 1) / settings.checks:
            checked += 1
            if settings.judging is not None and extra > settings.judging * steps and steps < settings.steps:
                continue
            returns, lengths, _ = rollouts(
                lambda v, net=network: net.q(v).argmax(axis=1) + start,
                where,
                check_seeds,
                features=problem.encoder,
                max_steps=settings.check_steps,
            )
            extra += int(lengths.sum())
            if returns.mean() >= best[0]:  # a later checkpoint of the same return has the better Q-values
                best = (float(returns.mean()), network)
            yield Progress(steps + extra, best[0], best[1])
    actor.close()


def _network(scaling: tuple[np.ndarray, np.ndarray], settings: Settings, state: Any, unit: float) -> Network:
    """The network as it is now, its values in the environment's own rewards."""
    *hidden, wv, bv, wa, ba = (np.asarray(w) for w in state[0])
    return Network(*scaling, settings.frequencies, (*hidden, *(np.float32(unit) * w for w in (wv, bv, wa, ba))))


UPDATES, STALE = 8, 32  # of one compiled call, at least, or as many as belong to so many steps


def _batches(rows: dict[str, np.ndarray], batch: int, *how: Any) -> tuple[np.ndarray, ...]:
    """Remembered rows as the minibatches of one compiled call, each array [updates, batch, …]."""
    x, after = (encode(rows[name], *how) for name in ("x", "after"))
    columns = (x, rows["action"], rows["reward"], after, rows["ended"])
    return tuple(column.reshape(-1, batch, *column.shape[1:]) for column in columns)


def _scaling(features: Features, seen: np.ndarray, standardise: bool) -> tuple[np.ndarray, np.ndarray]:
    """Bounded features go to [-1, 1], the others are standardised by what random behaviour showed.

    With `standardise` bounded ones are, too, unless that is less than a twentieth of their range.
    """
    mean, deviation = seen.mean(axis=0), np.maximum(seen.std(axis=0), 1e-6)
    with np.errstate(over="ignore", invalid="ignore"):
        middle, half = features.low / 2 + features.high / 2, features.high / 2 - features.low / 2
        half = np.where(half > 0, half, 1.0)
        narrow = np.clip(2 * deviation, half / 20, half)
    loose = features.unbounded
    if standardise:
        return mean, np.where(loose, 2 * deviation, narrow)
    return np.where(loose, mean, middle), np.where(loose, 2 * deviation, half)


def _compiled(settings: Settings, n: int, n_actions: int, seed: int) -> tuple[Any, Any]:
    """The compiled updates, and the state: weights, target weights, optimiser, updates."""
    try:
        import jax
        import jax.numpy as jnp
        import optax
    except ImportError:
        raise CustardError('the DQN expert needs jax and optax: pip install "custard-rl[neural]"') from None
    width, inputs = settings.hidden, n * (1 + 2 * settings.frequencies)
    rng = np.random.default_rng([seed, 1])
    weights: list[Any] = []
    for fan_in, fan_out in ((inputs, width), (width, width), (width, 1), (width, n_actions)):
        bound = np.sqrt(1.0 / fan_in)
        weights.append(jnp.asarray(rng.uniform(-bound, bound, (fan_in, fan_out)), dtype=jnp.float32))
        weights.append(jnp.zeros(fan_out, dtype=jnp.float32))
    total = max(1, int(settings.steps / settings.steps_per_update))
    rate = optax.linear_schedule(settings.learning_rate, settings.learning_rate / 10, total)
    optimiser = optax.chain(optax.clip_by_global_norm(10.0), optax.adam(rate))

    def q_values(w: Any, h: Any) -> Any:
        h = jax.nn.relu(h @ w[0] + w[1])
        h = jax.nn.relu(h @ w[2] + w[3])
        advantage = h @ w[6] + w[7]
        return h @ w[4] + w[5] + advantage - advantage.mean(axis=-1, keepdims=True)

    def update(state: Any, batch: Any) -> tuple[Any, None]:
        w, target, memory, number = state
        x, action, reward, after, ended = batch
        q_target = q_values(target, after)
        chosen = q_values(w, after).argmax(axis=1) if settings.double else q_target.argmax(axis=1)
        goal = reward + settings.gamma * (1.0 - ended) * q_target[jnp.arange(len(action)), chosen]

        def loss(w: Any) -> Any:
            # Squared, not Huber's: that follows the median, which forgets the rare step at which an episode ends.
            return optax.l2_loss(q_values(w, x)[jnp.arange(len(action)), action], goal).mean()

        change, memory = optimiser.update(jax.grad(loss)(w), memory, w)
        w = optax.apply_updates(w, change)
        number += 1
        move = settings.tau * (number % settings.target_every == 0)
        target = jax.tree.map(lambda t, v: t + move * (v - t), target, w)
        return (w, target, memory, number), None

    improve = jax.jit(lambda state, *batches: jax.lax.scan(update, state, batches)[0])
    w = tuple(weights)
    return improve, (w, w, optimiser.init(w), jnp.zeros((), dtype=jnp.int32))
