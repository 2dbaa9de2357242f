"""Coverage-guided fuzzing of what reads other people's data, by atheris.

    python -m tests.hostile.fuzz [options of atheris]

Without atheris (it has no wheel for every Python) the same targets are driven by random bytes for a minute.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import time

try:
    import atheris
except ImportError:
    atheris = None

#: Modules that read other people's data; instrumenting all there is takes minutes, and what numba compiles cannot be.
READERS = [
    f"custard.{name}"
    for name in ("core.actions", "core.features", "core.sums", "tree.assertions", "tree.linear", "tree.loading",
                 "tree.tree", "tree.verify")
]  # fmt: skip

with atheris.instrument_imports(include=READERS) if atheris else contextlib.nullcontext():
    import gymnasium as gym
    import numpy as np

    import custard
    from custard import CustardError, Tree
    from custard.tree.verify import verify

BASE = custard.describe(gym.make("CartPole-v1"))
TREE = Tree.stump(2, 0.0, 0, 1, BASE.features, BASE.actions)
MINUTE = 60.0


def one_input(data: bytes) -> None:
    """Read the data as a tree and as an assertion; only CustardError may come of it."""
    text = data.decode("utf-8", errors="surrogateescape")
    with contextlib.suppress(CustardError, json.JSONDecodeError, RecursionError):
        Tree.from_json(json.load(io.StringIO(text)))
    with contextlib.suppress(CustardError):
        verify(TREE, text, bounded=False)


def main() -> None:
    """Fuzz until Ctrl-C, or for a minute without atheris."""
    if atheris is None:
        rng, ends, count = np.random.default_rng(0), time.monotonic() + MINUTE, 0
        words = [*'()<>=!-.0123456789[]{},:" \n', "and", "or", "not", "->", "push_left", "pole_angle", "true", "null"]
        while time.monotonic() < ends:
            one_input("".join(rng.choice(words, size=int(rng.integers(1, 40)))).encode())
            count += 1
        print(f"atheris is not installed: {count:,} random inputs, nothing found")  # noqa: T201
        return
    atheris.Setup(sys.argv, one_input)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
