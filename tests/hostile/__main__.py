"""Run all attacks, or some: python -m tests.hostile [trees files command_lines assertions environments] [--seed N]."""

from __future__ import annotations

import signal
import sys
import time
import warnings

from tests.hostile import assertions, command_lines, environments, files, trees

#: What `make hostile` runs.
COUNTS = {"command_lines": 500, "files": 2000, "trees": 10_000, "assertions": 2000}


def main(words: list[str]) -> int:
    """Run, print, return the number of attacks that found something."""
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores Ctrl-C
    seed = int(words[words.index("--seed") + 1]) if "--seed" in words else 0
    chosen = [word for word in words if word in (*COUNTS, "environments")] or [*COUNTS, "environments"]
    found = 0
    for name in chosen:
        begun = time.perf_counter()
        if name == "environments":
            wrong, count = attack_environments(), len(environments.FAULTS)
        else:
            module = {"command_lines": command_lines, "files": files, "trees": trees, "assertions": assertions}[name]
            wrong, count = module.attack(COUNTS[name], seed), COUNTS[name]
        took = time.perf_counter() - begun
        print(f"{name}: {count:,} attacks, {len(wrong)} found something, {took:.0f} s", flush=True)  # noqa: T201
        for line in wrong[:40]:
            print(f"  {line}")  # noqa: T201
        found += bool(wrong)
    return found


def attack_environments() -> list[str]:
    """Check every misbehaving environment; return those whose fault was not named."""
    import custard

    wrong = []
    for name, fault in environments.FAULTS.items():
        report = custard.check_env(environments.make, env_kwargs={"name": name}, steps=2000)
        if fault.finding not in {finding.name for finding in report.findings}:
            wrong.append(f"{name}: {report}")
        environments._LEAKED.clear()
    return wrong


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
