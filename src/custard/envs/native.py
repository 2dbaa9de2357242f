"""The native environments, compiled: thousands of them stepped by one loop over rows of numbers.

Each world is three small functions over a row of state, written once beside its Gymnasium environment and compiled
here. A world is picked by number inside the loop, so that numba can keep one compiled loop on disk for all of them.
Sub-environment i of a vector seeded with `seed` behaves, bit for bit, like the single environment seeded `seed + i`.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numba import njit

from custard.core.errors import CustardError
from custard.core.metadata import metadata_of
from custard.core.numba_tools import njit_allocating, without_refcounts
from custard.core.seeds import seeds_for
from custard.envs import cartpole, classic, pothole_world, prereq_world, robot_nav
from custard.envs.pcg64 import streams, uniform

__all__ = ["CARTPOLE", "MAX_REWARDS", "POTHOLE", "PREREQ", "NativeVectorEnv", "advance", "begin", "observe", "twin"]

CARTPOLE, PREREQ, POTHOLE, MOUNTAIN_CAR, ACROBOT, PENDULUM = range(6)
# RobotNav by its hole and its observation, since starts and observations are made without parameters.
ROBOT_POLAR, ROBOT_POSITIONS, ROBOT_POLAR_RANDOM, ROBOT_POSITIONS_RANDOM = range(6, 10)

#: The most that one step gives, by kind of environment.
MAX_REWARDS = {
    CARTPOLE: 1.0, PREREQ: 0.0, POTHOLE: pothole_world.MAX_MOVE, MOUNTAIN_CAR: -1.0, ACROBOT: 0.0, PENDULUM: 0.0,
    **dict.fromkeys(range(ROBOT_POLAR, ROBOT_POSITIONS_RANDOM + 1), robot_nav.GOAL_REWARD),
}  # fmt: skip

_step_cartpole = njit(cache=True)(cartpole.step_cartpole)
_fallen = njit(cache=True)(cartpole.fallen)
_produce = njit(cache=True)(prereq_world.produce)
_drive = njit(cache=True)(pothole_world.drive)
_step_mountain_car = njit(cache=True)(classic.step_mountain_car)
_mountain_car_done = njit(cache=True)(classic.mountain_car_done)
_step_acrobot = njit_allocating(classic.step_acrobot)
_acrobot_done = njit(cache=True)(classic.acrobot_done)
_step_pendulum = njit(cache=True)(classic.step_pendulum)
_move_robot = njit(cache=True)(robot_nav.move_robot)
_robot_outcome = njit(cache=True)(robot_nav.robot_outcome)
_observe_polar = njit(cache=True)(robot_nav.observe_polar)
_past_hole = njit(cache=True)(robot_nav.past_hole)


@njit(cache=True)
def begin(world: int, state: np.ndarray, rng: np.ndarray) -> None:
    """Draw a start state into a row."""
    if world == CARTPOLE:
        for i in range(4):
            state[i] = uniform(rng, -cartpole.START_RADIUS, cartpole.START_RADIUS)
    elif world == MOUNTAIN_CAR:
        state[0] = uniform(rng, classic.CAR_START[0], classic.CAR_START[1])
        state[1] = 0.0
    elif world == ACROBOT:
        for i in range(4):
            state[i] = np.float64(np.float32(uniform(rng, -classic.ACROBOT_START, classic.ACROBOT_START)))
    elif world == PENDULUM:
        for i in range(2):
            state[i] = uniform(rng, -classic.PENDULUM_START[i], classic.PENDULUM_START[i])
    elif world >= ROBOT_POLAR:
        for i in range(2):
            state[i] = uniform(rng, 0.0, robot_nav.START_HIGH)
        for i in range(2, 4):
            is_fixed = world < ROBOT_POLAR_RANDOM
            state[i] = robot_nav.HOLE if is_fixed else uniform(rng, robot_nav.HOLE_LOW, robot_nav.HOLE_HIGH)
    else:
        for i in range(len(state)):
            state[i] = 0.0


@njit(cache=True, forceinline=True)
def advance(world: int, params: np.ndarray, state: np.ndarray, action: Any, rng: np.ndarray) -> tuple[float, bool]:
    """Take a base action (a whole number, or a vector's one component) in place; return reward and terminated.

    world   which environment
    params  its parameters, see `prereq_vector` and `pothole_vector`
    state   a row, changed in place
    action  the base action
    rng     a row of `custard.envs.pcg64`, advanced in place
    """
    if world == PENDULUM:
        return _step_pendulum(state, action, params[0, 0]), False
    action = int(action)
    if world == MOUNTAIN_CAR:
        _step_mountain_car(state, action)
        return -1.0, _mountain_car_done(state)
    if world == ACROBOT:
        _step_acrobot(state, action, params[0, 0])
        over = _acrobot_done(state)
        return (0.0 if over else -1.0), over
    if world == CARTPOLE:
        _step_cartpole(state, action)
        return 1.0, _fallen(state)
    if world == PREREQ:
        m = len(state)
        rho = params[m, 0]
        if rho > 0.0 and uniform(rng, 0.0, 1.0) < rho:
            return -1.0, False
        done = _produce(params, state, action) and action == prereq_world.GOAL_ITEM
        return (0.0 if done else -1.0), done
    if world >= ROBOT_POLAR:
        _move_robot(state, action)
        return _robot_outcome(state)
    distance = uniform(rng, pothole_world.MIN_MOVE, pothole_world.MAX_MOVE)
    length = params[2, 0]
    state[0], reward = _drive(params, state[0], action, distance, length)
    return reward, state[0] >= length


@njit(cache=True, forceinline=True)
def observe(world: int, state: np.ndarray, x: np.ndarray) -> None:
    """Write a state's features into `x`: what the environment's observation holds, widened to float64."""
    for i in range(len(x)):  # a loop, since an assignment of slices takes numba a second longer to compile
        x[i] = state[i]
    if world in (PREREQ, POTHOLE):
        return
    if world in (ROBOT_POLAR, ROBOT_POLAR_RANDOM):
        _observe_polar(state, x)
        return
    if world in (ROBOT_POSITIONS, ROBOT_POSITIONS_RANDOM):
        x[4] = 1.0 if _past_hole(state) else 0.0
        return
    if world == ACROBOT:
        x[0], x[1], x[2], x[3] = math.cos(state[0]), math.sin(state[0]), math.cos(state[1]), math.sin(state[1])
        x[4], x[5] = state[2], state[3]
    elif world == PENDULUM:
        x[0], x[1], x[2] = math.cos(state[0]), math.sin(state[0]), state[1]
    for i in range(len(x)):
        x[i] = np.float64(np.float32(x[i]))


@njit(cache=True)
def _reset_some(world, index, state, rng, elapsed, x):  # type: ignore[no-untyped-def]
    """Start an episode in the sub-environments `index`. Arrays as in `_step_some`."""
    for i in index:
        begin(world, state[i], rng[i])
        observe(world, state[i], x[i])
        elapsed[i] = 0


@njit(cache=True)
def _step_some(world, params, limit, index, actions, state, rng, elapsed, x, reward, terminated, truncated):  # type: ignore[no-untyped-def]
    """Take one action in each of the sub-environments `index`.

    world, params                     the environment and its parameters
    limit                             steps after which an episode is truncated
    index, actions                    [K], the sub-environments that act, and how
    state, rng, elapsed               [N, …], each sub-environment's state, random stream and steps so far
    x, reward, terminated, truncated  [N, …], what is written
    """
    params, state, rng, x = without_refcounts((params, state, rng, x))
    for k in range(len(index)):
        i = index[k]
        reward[i], terminated[i] = advance(world, params, state[i], actions[k], rng[i])
        observe(world, state[i], x[i])
        elapsed[i] += 1
        truncated[i] = elapsed[i] >= limit


class NativeVectorEnv(VectorEnv):
    """A vector of native environments, itself a Gymnasium vector environment.

    `step_some` and `reset_some` move only the sub-environments named by an index, which is what an IBMDP needs: some
    of its parts act while others still ask. They write into the arrays `x` [N, n], `reward`, `terminated` and
    `truncated`, which are this object's own; `step` and `reset` hand out copies.
    """

    feature_names: tuple[str, ...]
    action_names: tuple[str, ...]

    def __init__(
        self,
        world: int,
        single: Any,  # the single environment: its spaces, names and parameters are this one's
        params: np.ndarray,
        num_envs: int,
        max_episode_steps: int | None,
        autoreset_mode: AutoresetMode | str = AutoresetMode.NEXT_STEP,
    ) -> None:
        self.world, self.params, self.num_envs = world, params, num_envs
        self.autoreset_mode = AutoresetMode(autoreset_mode)
        self.metadata = {"autoreset_mode": self.autoreset_mode}
        self.single_observation_space, self.single_action_space = single.observation_space, single.action_space
        self.observation_space = batch_space(single.observation_space, num_envs)
        self.action_space = batch_space(single.action_space, num_envs)
        metadata = metadata_of(single)
        self.feature_names = tuple(getattr(single, "feature_names", metadata.features))
        self.action_names = tuple(getattr(single, "action_names", metadata.actions))
        self.discrete = hasattr(single.action_space, "n")
        self.limit = np.iinfo(np.int64).max if max_episode_steps is None else int(max_episode_steps)
        n = len(self.feature_names)
        self.state, self.x = np.zeros((num_envs, n)), np.full((num_envs, n), np.nan)
        self.elapsed = np.zeros(num_envs, dtype=np.int64)
        self.reward = np.zeros(num_envs)
        self.terminated, self.truncated = np.zeros(num_envs, dtype=bool), np.zeros(num_envs, dtype=bool)
        self.rng: np.ndarray | None = None
        self.everyone = np.arange(num_envs)

    def reset(
        self, *, seed: int | Sequence[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        """Start all sub-environments, or those of `options["reset_mask"]`."""
        mask = None if options is None else options.get("reset_mask")
        index = self.everyone if mask is None else np.flatnonzero(mask)
        seeds = seeds_for(seed, self.num_envs)
        if self.rng is None:
            self.rng = np.zeros((self.num_envs, 4), dtype=np.uint64)
            fresh = index if seed is not None else self.everyone
            self.seed_some(fresh, [seeds[i] for i in fresh])
        elif seed is not None:
            self.seed_some(index, [seeds[i] for i in index])
        self.reset_some(index)
        return self.observations(), {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Step all sub-environments; ended ones start again as the autoreset mode says."""
        actions = np.asarray(actions, dtype=np.int64 if self.discrete else np.float64).reshape(self.num_envs)
        if self.discrete and ((actions < 0) | (actions >= self.single_action_space.n)).any():  # type: ignore[attr-defined]
            raise CustardError(f"actions must lie in 0…{self.single_action_space.n - 1}")  # type: ignore[attr-defined]
        over = self.terminated | self.truncated
        infos: dict[str, Any] = {}
        if self.autoreset_mode == AutoresetMode.NEXT_STEP and over.any():
            running = np.flatnonzero(~over)
            self.step_some(running, actions[running])
            self.reset_some(np.flatnonzero(over))
            self.reward[over] = 0.0
        else:
            self.step_some(self.everyone, actions)
        results = self.reward.copy(), self.terminated.copy(), self.truncated.copy()
        if self.autoreset_mode == AutoresetMode.SAME_STEP:
            over = self.terminated | self.truncated
            if over.any():
                final, last = np.full(self.num_envs, None, dtype=object), self.observations()
                for i in np.flatnonzero(over):
                    final[i] = last[i]
                infos = {"final_obs": final, "_final_obs": over, "final_info": {}, "_final_info": over}
                self.reset_some(np.flatnonzero(over))
        return (self.observations(), *results, infos)

    def observations(self) -> np.ndarray:
        """Return the present observations, a fresh array of the space's type."""
        return self.x.astype(self.single_observation_space.dtype)

    def seed_some(self, index: np.ndarray, seeds: Sequence[int | None]) -> None:
        """Give some sub-environments new random streams."""
        assert self.rng is not None
        self.rng[index] = streams(seeds)

    def reset_some(self, index: np.ndarray) -> None:
        """Start an episode in some sub-environments."""
        assert self.rng is not None
        self.terminated[index] = self.truncated[index] = False
        _reset_some(self.world, index, self.state, self.rng, self.elapsed, self.x)

    def step_some(self, index: np.ndarray, actions: Any) -> None:
        """Take one base action in each of some sub-environments."""
        if self.rng is None:
            raise CustardError("call reset() before step()")
        actions = np.asarray(actions) if self.discrete else np.asarray(actions, dtype=np.float64).reshape(len(index))
        _step_some(
            self.world, self.params, self.limit, index, actions, self.state, self.rng, self.elapsed, self.x,
            self.reward, self.terminated, self.truncated,
        )  # fmt: skip


def cartpole_vector(num_envs: int = 1, max_episode_steps: int | None = 200, **kwargs: Any) -> NativeVectorEnv:
    """Make native CartPole environments."""
    mode = {key: kwargs.pop(key) for key in ("autoreset_mode",) if key in kwargs}
    single = cartpole.CartPole(**kwargs)
    return NativeVectorEnv(CARTPOLE, single, np.zeros((1, 1)), num_envs, max_episode_steps, **mode)


def prereq_vector(num_envs: int = 1, max_episode_steps: int | None = None, **kwargs: Any) -> NativeVectorEnv:
    """Make native PrereqWorld environments; the parameters are its prerequisites with rho in a last row."""
    mode = {key: kwargs.pop(key) for key in ("autoreset_mode",) if key in kwargs}
    single = prereq_world.PrereqWorld(**kwargs)
    params = np.vstack([single.needs, np.full((1, single.m), single.rho)])
    return NativeVectorEnv(PREREQ, single, params, num_envs, max_episode_steps, **mode)


def pothole_vector(num_envs: int = 1, max_episode_steps: int | None = None, **kwargs: Any) -> NativeVectorEnv:
    """Make native PotholeWorld environments; the parameters are both lanes' potholes with the length in a last row."""
    mode = {key: kwargs.pop(key) for key in ("autoreset_mode",) if key in kwargs}
    single = pothole_world.PotholeWorld(**kwargs)
    params = np.vstack([single.potholes, np.full((1, single.potholes.shape[1]), single.length)])
    return NativeVectorEnv(POTHOLE, single, params, num_envs, max_episode_steps, **mode)


def robot_vector(num_envs: int = 1, max_episode_steps: int | None = None, **kwargs: Any) -> NativeVectorEnv:
    """Make native RobotNav environments."""
    mode = {key: kwargs.pop(key) for key in ("autoreset_mode",) if key in kwargs}
    single = robot_nav.RobotNav(**kwargs)
    world = ROBOT_POLAR + robot_nav.OBSERVATIONS.index(single.observation) + 2 * robot_nav.HOLES.index(single.hole)
    return NativeVectorEnv(world, single, np.zeros((1, 1)), num_envs, max_episode_steps, **mode)


#: Gymnasium's environments with a compiled twin: world and class. Their own time limits are kept by the caller.
CLASSIC_TWINS = {
    "MountainCar-v0": (MOUNTAIN_CAR, "mountain_car:MountainCarEnv"),
    "Acrobot-v1": (ACROBOT, "acrobot:AcrobotEnv"),
    "Pendulum-v1": (PENDULUM, "pendulum:PendulumEnv"),
}


def twin(name: str) -> Callable[..., NativeVectorEnv] | None:
    """Return a function (number, limit, …) that makes the compiled twin of a Gymnasium environment, if it has one.

    >>> twin("MountainCar-v0")(3, 200).num_envs
    3
    """
    if name in ("CartPole-v0", "CartPole-v1"):
        return cartpole_vector
    if name not in CLASSIC_TWINS:
        return None
    world, where = CLASSIC_TWINS[name]
    module, _, kind = where.partition(":")

    def make(num_envs: int = 1, max_episode_steps: int | None = None, **mode: Any) -> NativeVectorEnv:
        single = getattr(importlib.import_module(f"gymnasium.envs.classic_control.{module}"), kind)()
        return NativeVectorEnv(world, single, np.full((1, 1), 2.0), num_envs, max_episode_steps, **mode)

    return make
