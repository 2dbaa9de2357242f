"""The paper's environments and RobotNav, registered with Gymnasium under `custard/` as soon as Gymnasium is there."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

__all__ = ["register_all"]


def register_all() -> None:
    """Register what is not registered yet; the modules themselves load when an environment is made."""
    from gymnasium.envs.registration import register, registry

    for name, where, vector, limit, threshold in (
        ("CartPole-v0", "cartpole:CartPole", "cartpole_vector", 200, 195.0),
        ("PrereqWorld-v0", "prereq_world:PrereqWorld", "prereq_vector", 1000, None),
        ("PotholeWorld-v0", "pothole_world:PotholeWorld", "pothole_vector", None, None),
        ("RobotNav-v0", "robot_nav:RobotNav", "robot_vector", 100, None),
    ):
        if f"custard/{name}" not in registry:
            register(
                id=f"custard/{name}",
                entry_point=f"custard.envs.{where}",
                vector_entry_point=f"custard.envs.native:{vector}",
                max_episode_steps=limit,
                reward_threshold=threshold,
            )


class _AfterGymnasium(MetaPathFinder, Loader):
    """Loads Gymnasium in the usual way, then registers: whoever does not need it does not wait for it."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        """Find Gymnasium in the usual way and put this loader in between."""
        if name != "gymnasium":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            self.usual, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Create the module in the usual way."""
        return self.usual.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module in the usual way, then register."""
        if module.__spec__ is not None:
            module.__spec__.loader = self.usual
        module.__loader__ = self.usual
        self.usual.exec_module(module)
        register_all()


if "gymnasium" in sys.modules:
    register_all()
else:
    sys.meta_path.insert(0, _AfterGymnasium())
