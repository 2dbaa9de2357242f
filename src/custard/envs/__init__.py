"""The paper's three environments, registered with Gymnasium under `custard/`."""

from __future__ import annotations

from gymnasium.envs.registration import register, registry

__all__ = ["register_all"]


def register_all() -> None:
    """Register what is not registered yet; the modules themselves load when an environment is made."""
    for name, where, vector, limit, threshold in (
        ("CartPole-v0", "cartpole:CartPole", "cartpole_vector", 200, 195.0),
        ("PrereqWorld-v0", "prereq_world:PrereqWorld", "prereq_vector", 1000, None),
        ("PotholeWorld-v0", "pothole_world:PotholeWorld", "pothole_vector", None, None),
    ):
        if f"custard/{name}" not in registry:
            register(
                id=f"custard/{name}",
                entry_point=f"custard.envs.{where}",
                vector_entry_point=f"custard.envs.native:{vector}",
                max_episode_steps=limit,
                reward_threshold=threshold,
            )


register_all()
