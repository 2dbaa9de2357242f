"""Experts from saved Stable-Baselines3 and sb3-contrib models. Needs the extra "sb3"."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from custard.core.errors import CustardError
from custard.experts.expert import Expert
from custard.task.problem import Problem

__all__ = ["load_sb3"]


def load_sb3(path: Path, problem: Problem, normalise: Path | None = None) -> Expert:
    """Return the expert in a file; `normalise` is a file of `VecNormalize` statistics."""
    try:
        import stable_baselines3 as sb3
        import torch
    except ImportError:
        raise CustardError(f'reading {path} needs Stable-Baselines3: pip install "custard-rl[sb3]"') from None
    algorithms: list[Any] = [sb3.DQN, sb3.PPO, sb3.A2C, sb3.SAC, sb3.TD3]
    try:
        import sb3_contrib

        algorithms += [sb3_contrib.QRDQN, sb3_contrib.TRPO, sb3_contrib.MaskablePPO, sb3_contrib.ARS, sb3_contrib.TQC]
    except ImportError:
        pass
    model = _load_model(path, algorithms)
    _require_same_spaces(model, path, problem)
    statistics = _load_statistics(normalise, problem) if normalise is not None else None
    model.policy.set_training_mode(False)

    def normalised(x: np.ndarray) -> Any:
        space = model.observation_space
        observation: Any = np.asarray(x).reshape(len(x), *space.shape).astype(space.dtype)
        if statistics is not None and statistics.norm_obs:
            observation = statistics.normalize_obs(observation)
        return observation

    def observe(x: np.ndarray) -> Any:
        return model.policy.obs_to_tensor(normalised(x))[0]

    def q(x: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            if hasattr(model, "quantile_net"):
                return model.quantile_net(observe(x)).mean(dim=1).double().numpy()
            return model.q_net(observe(x)).double().numpy()

    def log_policy(x: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return model.policy.get_distribution(observe(x)).distribution.logits.double().numpy()

    name = f"{type(model).__name__} from {path.name}"
    if not problem.base.actions.discrete:
        return Expert(name, lambda x: model.predict(normalised(x), deterministic=True)[0].reshape(len(x), -1), None)
    if hasattr(model, "q_net") or hasattr(model, "quantile_net"):
        return Expert(name, lambda x: q(x).argmax(axis=1), q)
    return Expert(name, lambda x: log_policy(x).argmax(axis=1), None, log_policy)


def _require_same_spaces(model: Any, path: Path, problem: Problem) -> None:
    """Raise if the model does not take the problem's features or has other actions."""
    if problem.encoder is not None:
        raise CustardError(
            "a Stable-Baselines3 expert sees the environment's own observations: features= is not possible"
        )
    space = problem.base.action_space
    kind = "n" if problem.base.actions.discrete else "shape"
    if getattr(model.action_space, kind, None) != getattr(space, kind, -1):
        raise CustardError(f"the model in {path} was trained for actions {model.action_space}, not {space}")
    shape, n = model.observation_space.shape, problem.base.features.n
    if getattr(model.observation_space, "n", None) is not None:
        raise CustardError(
            f"the model in {path} takes a single number as observation: use an encoding of features instead"
        )
    if int(np.prod(shape)) != n:
        raise CustardError(f"the model in {path} was trained for observations {shape}, not for {n} features")


def _load_statistics(path: Path, problem: Problem) -> Any:
    """Return the `VecNormalize` statistics in a file."""
    from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize

    try:
        statistics = VecNormalize.load(str(path), DummyVecEnv([problem.source.make]))
    except Exception as error:
        raise CustardError(f"cannot read VecNormalize statistics from {path}: {error}") from None
    statistics.training = False
    return statistics


def _load_model(path: Path, algorithms: list[Any]) -> Any:
    """Return the model in a file, of whichever algorithm saved it: the one whose hyper-parameters the file holds."""
    if not path.exists():
        raise CustardError(f"cannot read {path}: no such file")
    from stable_baselines3.common.save_util import load_from_zip_file

    try:
        data, parameters, _ = load_from_zip_file(str(path), device="cpu")
    except Exception as error:
        raise CustardError(f"{path} is not a saved Stable-Baselines3 model ({error})") from None
    hyper_parameters = set(data or {})
    parts = set((parameters or {}).get("policy", {}))
    if any(part.startswith("quantile_net.") for part in parts):
        wanted = "QRDQN"
    elif any(part.startswith("q_net.") for part in parts):
        wanted = "DQN"
    elif "clip_range" in hyper_parameters:
        wanted = "MaskablePPO" if "maskable" in str((data or {}).get("policy_class", "")).lower() else "PPO"
    elif "top_quantiles_to_drop_per_net" in hyper_parameters:
        wanted = "TQC"
    elif "target_entropy" in hyper_parameters:
        wanted = "SAC"
    elif "policy_delay" in hyper_parameters:
        wanted = "TD3"
    elif "cg_max_steps" in hyper_parameters:
        wanted = "TRPO"
    else:
        wanted = "A2C"
    for algorithm in algorithms:
        if algorithm.__name__ == wanted:
            try:
                return algorithm.load(str(path), device="cpu")
            except Exception as error:
                raise CustardError(f"{path} could not be loaded as {wanted}: {error}") from None
    raise CustardError(f'{path} holds a {wanted} model: pip install "custard-rl[sb3]" to read it')
