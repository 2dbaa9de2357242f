"""Store what every small pinned run gives, or compare it with what was stored: for changes that must change nothing.

    python benchmarks/golden_trees.py store DIRECTORY [PART OF A NAME …]
    python benchmarks/golden_trees.py compare DIRECTORY [PART OF A NAME …]
    python benchmarks/golden_trees.py commit     # regenerate tests/golden/trees/ (say so in the commit)

`commit` runs every case twice, the second time with the processor's vector extensions off, and keeps those that come
out the same: only these are equal on other processors. The others (networks, mostly) are compared on one machine.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.golden.cases import TREES, as_text, cases

PLAIN_PROCESSOR = {
    "NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "XLA_FLAGS": "--xla_cpu_max_isa=SSE4_2",
    "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3", "OPENBLAS_CORETYPE": "Prescott",
}  # fmt: skip


def chosen(parts: list[str]) -> list:
    """The cases whose name holds one of the parts; all, without any."""
    return [case for case in cases() if not parts or any(part in case.name for part in parts)]


def store(folder: Path, parts: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for case in chosen(parts):
        file = folder / f"{case.name}.json"
        if file.exists():
            continue
        begun = time.perf_counter()
        file.write_text(as_text(case.run()))
        print(f"{case.name}: {time.perf_counter() - begun:.1f} s", flush=True)


def compare(folder: Path, parts: list[str]) -> int:
    different = 0
    for case in chosen(parts):
        file = folder / f"{case.name}.json"
        if not file.exists():
            print(f"{case.name}: not stored")
            continue
        try:
            now = json.loads(as_text(case.run()))
        except Exception as error:
            now = {"error": repr(error)}
        before = json.loads(file.read_text())
        changed = sorted(key for key in before.keys() | now.keys() if repr(before.get(key)) != repr(now.get(key)))
        different += bool(changed)
        print(f"{case.name}: {'DIFFERENT in ' + ', '.join(changed) if changed else 'the same'}", flush=True)
        if "error" in now:
            print(f"    {now['error']}")
    print(f"{different} different")
    return different


def commit() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, variables in (("plain", PLAIN_PROCESSOR), ("usual", {})):
            cache = {"NUMBA_CACHE_DIR": f"{folder}/cache-{name}"}
            command = [sys.executable, __file__, "store", f"{folder}/{name}"]
            subprocess.run(command, check=True, env={**os.environ, **cache, **variables})
        for old in TREES.glob("*.json"):
            old.unlink()
        for file in sorted(Path(folder, "usual").glob("*.json")):
            same = file.read_text() == Path(folder, "plain", file.name).read_text()
            print(f"{file.stem}: {'kept' if same else 'differs with the processor'}")
            if same:
                (TREES / file.name).write_text(file.read_text())


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    match sys.argv[1:]:
        case ["store", folder, *parts]:
            store(Path(folder), parts)
        case ["compare", folder, *parts]:
            sys.exit(min(1, compare(Path(folder), parts)))
        case ["commit"]:
            commit()
        case _:
            sys.exit(__doc__)
