"""Former names of `custard.task.compiled_rollouts`."""

import numpy as np

from custard.task.compiled_rollouts import MIN_PARALLEL_EPISODES as SOME
from custard.task.compiled_rollouts import MIN_PARALLEL_STEPS as MANY
from custard.task.compiled_rollouts import TABLE_WORLD as TABLE
from custard.task.compiled_rollouts import copy_row as copy
from custard.task.compiled_rollouts import observe_features as see
from custard.task.compiled_rollouts import roll_out, tree_rollouts
from custard.task.compiled_rollouts import start_episode as start
from custard.task.compiled_rollouts import take_action as move
from custard.task.compiled_rollouts import tree_arrays as arrays_of
from custard.task.compiled_rollouts import world_of as native_place

Place = tuple[int, np.ndarray, int, int]  # a plain `World`

__all__ = [
    "MANY", "SOME", "TABLE", "Place", "arrays_of", "copy", "move", "native_place", "roll_out", "see", "start",
    "tree_rollouts",
]  # fmt: skip
