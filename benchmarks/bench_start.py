"""How long a method takes from starting Python to its first judged tree, compiling included.

    python benchmarks/bench_start.py [METHOD ...]

Each method is started twice in a process of its own: with nothing compiled, as after an installation, and again.
PrereqWorld with m = 7, so that learning itself takes next to nothing. Wall seconds and, in brackets, the processor's.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

METHODS = ("tpi", "mfec", "dqn", "ppo")
FIRST_TREE = """
import sys, time
wall = time.perf_counter()
from custard.lab.methods import method
from custard.task.settings import settings_for
from custard.task.source import source
from custard.task.problem import Problem
from custard.core.spaces import describe
where = source("custard/PrereqWorld-v0", {"m": 7})
_, module = method(sys.argv[1])
settings = settings_for(module, where.name, "tuned", {})
next(iter(module.solve(Problem(where, describe(where.make_vec(1))), settings)))
print(f"{time.perf_counter() - wall:6.1f} s ({time.process_time():.1f})")
"""


def main() -> None:
    print(f"{'method':8} {'first':>14} {'again':>14}")
    for name in sys.argv[1:] or METHODS:
        with tempfile.TemporaryDirectory() as empty:
            env = os.environ | {"NUMBA_CACHE_DIR": empty}
            call = [sys.executable, "-c", FIRST_TREE, name]
            times = [subprocess.run(call, env=env, check=True, capture_output=True, text=True).stdout for _ in range(2)]
        print(f"{name:8} {times[0].strip():>14} {times[1].strip():>14}", flush=True)


if __name__ == "__main__":
    main()
