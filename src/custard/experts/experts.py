"""Experts, for VIPER and for tree policy iteration to begin from: they act well and say what each action is worth.

| `expert=` | what it is |
|---|---|
| "dqn" | our own DQN, trained first (`custard.experts.dqn`) |
| "bi" | backward induction on the exact model, or on a grid of states (`custard.planning.grid`) |
| a file `.npz` | a DQN of ours, saved |
| a file `.zip` | a Stable-Baselines3 or sb3-contrib model (DQN, PPO, …), with its `VecNormalize` statistics if given |
| a function | from feature vectors [B, n] to Q-values [B, A] |
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from custard.core.errors import CustardError
from custard.core.mdp import FiniteMDP
from custard.experts import dqn
from custard.planning import grid
from custard.planning.model import model_of
from custard.planning.solve import backward_induction
from custard.task.problem import Problem

__all__ = ["Expert", "experts", "from_function", "from_model", "from_sb3"]


REMEMBERED = 8  # DQNs that were trained last

_networks: dict[tuple[Any, ...], tuple[dqn.Progress, Any]] = {}  # with what must not be thrown away meanwhile


@dataclass(frozen=True)
class Expert:
    """Acts, and rates actions."""

    name: str
    act: Callable[[np.ndarray], np.ndarray]  # feature vectors [B, n] -> action numbers 0…A-1 [B]
    q: Callable[[np.ndarray], np.ndarray] | None  # feature vectors [B, n] -> Q-values [B, A]
    log_policy: Callable[[np.ndarray], np.ndarray] | None = None  # [B, n] -> log-probabilities [B, A]


def experts(
    problem: Problem,
    given: str | Callable[..., Any],
    training: dqn.Settings,
    seed: int,
    *,
    ties: str = "random",
    normalise: str | None = None,
    out: str | None = None,
) -> Iterator[dqn.Progress | Expert]:
    """Progress of the expert's training, if it needs any, then the expert. `out` is a file to keep a trained DQN in."""
    problem.require_discrete_actions("an expert")
    n_actions = problem.base.actions.n
    if callable(given):
        yield from_function(given, n_actions)
    elif given == "bi":
        on_grid = grid.q_function(problem.source) if problem.native else None
        if on_grid is None:
            yield from_model(problem, ties, seed)
        else:
            yield from_function(on_grid, n_actions, "backward induction on a grid")
    elif given == "dqn":
        last = None
        for last in _trained(problem, training, seed):
            yield last
        if last is None or last.best is None:
            raise CustardError(f"{training.steps} steps are too few for a DQN expert")
        if out is not None:
            last.best.save(out)
        yield from_function(last.best.q, n_actions, f"DQN, return {last.value:.2f}")
    elif str(given).endswith(".npz"):
        yield from_function(dqn.Network.load(given).q, n_actions, f"DQN from {Path(given).name}")
    elif str(given).endswith(".zip"):
        yield from_sb3(Path(given), problem, Path(normalise) if normalise else None)
    else:
        raise CustardError(f"unknown expert {given!r}: choose dqn, bi, a .npz or .zip file, or a function to Q-values")


def _trained(problem: Problem, training: dqn.Settings, seed: int) -> Iterator[dqn.Progress]:
    """The training of a DQN. Trials that differ in the tree alone train the same one: it is remembered."""
    where, features = problem.source, problem.base.features
    task = where.spec or where, problem.encoder
    key = (*map(id, task), repr(where.kwargs), features.low.tobytes(), features.high.tobytes(), training, seed)
    if key in _networks:
        yield _networks[key][0]
        return
    last = None
    for last in dqn.train(problem, training, seed):
        yield last
    if last is not None:
        _networks[key] = last, task
        if len(_networks) > REMEMBERED:
            del _networks[next(iter(_networks))]


def from_function(function: Callable[[np.ndarray], Any], n_actions: int, name: str = "function") -> Expert:
    """An expert from any function that gives Q-values.

    >>> from_function(lambda x: np.stack([x[:, 0], -x[:, 0]], axis=1), 2).act(np.array([[1.0], [-1.0]]))
    array([0, 1])
    """

    def q(x: np.ndarray) -> np.ndarray:
        values = np.asarray(function(x), dtype=np.float64)
        if values.shape != (len(x), n_actions):
            raise CustardError(
                f"an expert must give Q-values of shape [B, {n_actions}]; for {len(x)} states it gave {values.shape}"
            )
        if np.isnan(values).any():
            raise CustardError("the expert gave NaN for a Q-value")
        return values

    return Expert(name, lambda x: q(x).argmax(axis=1), q)


def from_model(problem: Problem, ties: str, seed: int) -> Expert:
    """Backward induction on the environment's exact model (PotholeWorld: on a fine grid of positions)."""
    mdp = model_of(problem.source, problem.base)
    choice, _, q = backward_induction(mdp, ties, seed)
    q = np.where(np.isneginf(q), np.where(np.isneginf(q), np.inf, q).min() - 100.0, q)  # weights must stay finite
    state_of = nearest_state(mdp) if mdp.x.shape[1] == 1 else exact_state(mdp)
    return Expert(f"backward induction, ties {ties}", lambda x: choice[state_of(x)], lambda x: q[state_of(x)])


def exact_state(mdp: FiniteMDP) -> Callable[[np.ndarray], np.ndarray]:
    """A function from feature vectors to state numbers; states that look alike cannot be told apart."""
    index: dict[bytes, int] = {}
    for state in np.flatnonzero(~mdp.terminal).tolist():
        key = mdp.x[state].tobytes()
        if key in index:
            raise CustardError(
                f"states {index[key]} and {state} have the same features: no expert over features exists"
            )
        index[key] = state

    def find(x: np.ndarray) -> np.ndarray:
        try:
            return np.array([index[row.tobytes()] for row in np.asarray(x, dtype=np.float64)], dtype=np.int64)
        except KeyError:
            raise CustardError("the environment reached a state its exact model does not hold") from None

    return find


def nearest_state(mdp: FiniteMDP) -> Callable[[np.ndarray], np.ndarray]:
    """For one feature: the state whose value lies nearest."""
    states = np.flatnonzero(~mdp.terminal)
    states = states[np.argsort(mdp.x[states, 0], kind="stable")]
    values = mdp.x[states, 0]
    between = values[:-1] + np.diff(values) / 2
    return lambda x: states[np.searchsorted(between, np.asarray(x)[:, 0])]


def from_sb3(path: Path, problem: Problem, normalise: Path | None = None) -> Expert:
    """An expert from a saved Stable-Baselines3 model; `normalise` is a file of `VecNormalize` statistics."""
    try:
        import stable_baselines3 as sb3
        import torch
        from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
    except ImportError:
        raise CustardError(f'reading {path} needs Stable-Baselines3: pip install "custard-rl[sb3]"') from None
    kinds: list[Any] = [sb3.DQN, sb3.PPO, sb3.A2C]
    try:
        import sb3_contrib

        kinds += [sb3_contrib.QRDQN, sb3_contrib.TRPO, sb3_contrib.MaskablePPO, sb3_contrib.ARS]
    except ImportError:
        pass
    model = _load_sb3(path, kinds)
    if problem.encoder is not None:
        raise CustardError(
            "a Stable-Baselines3 expert sees the environment's own observations: features= is not possible"
        )
    space = problem.base.action_space
    if getattr(model.action_space, "n", None) != getattr(space, "n", -1):
        raise CustardError(f"the model in {path} was trained for actions {model.action_space}, not {space}")
    shape = model.observation_space.shape
    n = problem.base.features.n
    discrete = getattr(model.observation_space, "n", None) is not None
    if not discrete and int(np.prod(shape)) != n:
        raise CustardError(f"the model in {path} was trained for observations {shape}, not for {n} features")
    if discrete:
        raise CustardError(
            f"the model in {path} takes a single number as observation: use an encoding of features instead"
        )
    statistics = None
    if normalise is not None:
        try:
            statistics = VecNormalize.load(str(normalise), DummyVecEnv([problem.source.make]))
        except Exception as error:
            raise CustardError(f"cannot read VecNormalize statistics from {normalise}: {error}") from None
        statistics.training = False
    model.policy.set_training_mode(False)

    def observe(x: np.ndarray) -> Any:
        observation: Any = np.asarray(x).reshape(len(x), *shape).astype(model.observation_space.dtype)
        if statistics is not None and statistics.norm_obs:
            observation = statistics.normalize_obs(observation)
        return model.policy.obs_to_tensor(observation)[0]

    def q(x: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            if hasattr(model, "quantile_net"):
                return model.quantile_net(observe(x)).mean(dim=1).double().numpy()
            return model.q_net(observe(x)).double().numpy()

    def log_policy(x: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return model.policy.get_distribution(observe(x)).distribution.logits.double().numpy()

    name = f"{type(model).__name__} from {path.name}"
    if hasattr(model, "q_net") or hasattr(model, "quantile_net"):
        return Expert(name, lambda x: q(x).argmax(axis=1), q)
    return Expert(name, lambda x: log_policy(x).argmax(axis=1), None, log_policy)


def _load_sb3(path: Path, kinds: list[Any]) -> Any:
    """The model, whichever algorithm saved it: the one whose own hyper-parameters the file holds."""
    if not path.exists():
        raise CustardError(f"cannot read {path}: no such file")
    from stable_baselines3.common.save_util import load_from_zip_file

    try:
        data, parameters, _ = load_from_zip_file(str(path), device="cpu")
    except Exception as error:
        raise CustardError(f"{path} is not a saved Stable-Baselines3 model ({error})") from None
    has = set(data or {})
    names = set((parameters or {}).get("policy", {}))
    if any(name.startswith("quantile_net.") for name in names):
        wanted = "QRDQN"
    elif any(name.startswith("q_net.") for name in names):
        wanted = "DQN"
    elif "clip_range" in has:
        wanted = "MaskablePPO" if "maskable" in str((data or {}).get("policy_class", "")).lower() else "PPO"
    elif "cg_max_steps" in has:
        wanted = "TRPO"
    else:
        wanted = "A2C"
    for kind in kinds:
        if kind.__name__ == wanted:
            try:
                return kind.load(str(path), device="cpu")
            except Exception as error:
                raise CustardError(f"{path} could not be loaded as {wanted}: {error}") from None
    raise CustardError(f'{path} holds a {wanted} model: pip install "custard-rl[sb3]" to read it')
