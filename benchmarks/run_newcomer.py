"""Do what a newcomer does, from a fresh clone, and note how long each step takes and how long it is silent.

python benchmarks/run_newcomer.py [--skip-setup] [--page]

Clones this repository into a temporary directory and runs there: `make demo`; every command of the README's quick
blocks; its Python block; the commands of the tutorial; an environment of one's own (the how-to's); export to C,
compiled and called. Every step has a terminal of its own of 100 columns, as a person has. `--skip-setup` uses the
Python that runs this script instead of an environment made by `make`; `--page` writes the table into
results/newcomer.md. Exit code 1 if a step fails. A step is silent while it prints nothing.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import selectors
import struct
import subprocess
import sys
import tempfile
import termios
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAX_STEP_SECONDS = 1800.0
MAX_SILENCE = 5.0  # seconds; longer ones are marked
TERMINAL_SIZE = 40, 100  # lines, columns

ABOUT = """\
# What a newcomer waits for

`python benchmarks/run_newcomer.py --page` clones the repository into a temporary directory, sets it up from nothing
(packages are downloaded) and does what the README, the tutorial and the page about one's own environment say, each
step in a terminal of its own. It writes this page. *Seconds* is how long a step takes, *silent* the longest time in
which nothing new appeared on the screen. On {cores} cores, whose load average, before and after, was {load}: with
more than {cores} other things were running too, and a step takes longer.

{verdict}

| step | seconds | silent |
|---|---|---|
"""


def main(words: list[str]) -> int:
    """Run all steps and print a table."""
    with tempfile.TemporaryDirectory() as directory:
        clone = Path(directory) / "custard"
        steps: list[tuple[str, list[str]]] = [("clone", ["git", "clone", "--quiet", str(ROOT), str(clone)])]
        if "--skip-setup" in words:
            python, extra = sys.executable, {"PYTHONPATH": str(clone / "src")}
            demo = "train CartPole-v1 --max-depth 2 --seed 0 --out runs/demo"
            steps.append(("demo (without make)", [python, "-m", "custard", *demo.split()]))
        else:
            python, extra = str(clone / ".venv" / "bin" / "python"), {}
            steps.append(("make demo", ["make", "demo"]))
        load = [os.getloadavg()[0]]
        rows: list[tuple[str, int, float, float]] = []
        print(f"{'step':<60} {'seconds':>8} {'longest silence':>16}")
        for name, command in steps:
            rows.append((name, *watch(command, clone if clone.exists() else Path(directory), extra)))
            report(*rows[-1])
        for name, command in [*readme_steps(clone, python), *tutorial_steps(clone, python), *own_steps(clone, python)]:
            rows.append((name, *watch(command, clone, extra)))
            report(*rows[-1])
        if "--page" in words:
            (ROOT / "results" / "newcomer.md").write_text(page(rows, [*load, os.getloadavg()[0]]))
        return int(any(code for _, code, *_ in rows))


def page(rows: list[tuple[str, int, float, float]], load: list[float]) -> str:
    """Return the page about the steps."""
    failed, silent = sum(code != 0 for _, code, *_ in rows), sum(row[3] > MAX_SILENCE for row in rows)
    minutes = sum(row[2] for row in rows) / 60
    verdict = (
        f"{len(rows)} steps in {minutes:.1f} minutes. Failed: {failed or 'none'}. "
        f"Silent for more than {MAX_SILENCE:g} s: {silent or 'none'}."
    )
    about = ABOUT.format(cores=os.cpu_count(), load=" and ".join(f"{one:.1f}" for one in load), verdict=verdict)
    lines = [
        f"| `{name}` | {seconds:.1f} | {silence:.1f}{' **failed**' if code else ''} |"
        for name, code, seconds, silence in rows
    ]
    return about + "\n".join(lines) + "\n"


def readme_steps(clone: Path, python: str) -> list[tuple[str, list[str]]]:
    """Return the README's quick commands and its Python block."""
    readme = (clone / "README.md").read_text()
    (script,) = re.findall(r"^```python\n(.*?)^```$", readme, re.M | re.S)
    (clone / "readme_block.py").write_text(script)
    return [*commands(readme, python), ("README's Python", [python, "readme_block.py"])]


def tutorial_steps(clone: Path, python: str) -> list[tuple[str, list[str]]]:
    """Return the tutorial's commands; it has a directory of its own for the tree that the README learned already."""
    names = ("first-tree", "read-it", "prove-something", "ship-it")
    texts = [
        (clone / "docs" / "tutorial" / f"{name}.md").read_text().replace("runs/cartpole", "runs/tutorial")
        for name in names
    ]
    return [step for text in texts for step in commands(text, python)]


def own_steps(clone: Path, python: str) -> list[tuple[str, list[str]]]:
    """Return the how-to's own environment, and its tree as C, compiled and called."""
    page = (clone / "docs" / "how-to" / "own-environment.md").read_text()
    (source,) = re.findall(r"write_text\('''\n(.*?)\n\.\.\. '''\)", page, re.S)
    (clone / "heater.py").write_text(
        "\n".join(line.removeprefix("...").removeprefix(" ") for line in source.split("\n"))
    )
    call = "import ctypes; f = ctypes.CDLL('./heater.so').custard_act; print(f((ctypes.c_double * 2)(10.0, 0.0)))"
    return [
        *commands(page, python),
        ("export to C", [python, "-m", "custard", "export", "runs/heater", "--format", "c", "--out", "heater.c"]),
        ("compile", ["cc", "-O2", "-shared", "-fPIC", "-o", "heater.so", "heater.c"]),
        ("call", [python, "-c", call]),
    ]


def commands(text: str, python: str) -> list[tuple[str, list[str]]]:
    """Return the commands of a page's console blocks."""
    import shlex

    found = []
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.M | re.S):
        for line in re.findall(r"^\$ custard (.*)$", block, re.M):
            words = shlex.split(line, comments=True)
            found.append((f"custard {' '.join(words)}"[:60], [python, "-m", "custard", *words]))
    return found


def watch(command: list[str], where: Path, extra: dict[str, str]) -> tuple[int, float, float]:
    """Run a command; return its exit code, its seconds and its longest silence."""
    screen, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", *TERMINAL_SIZE, 0, 0))
    started = heard = time.monotonic()
    silence = 0.0
    environment = {**os.environ, "TERM": "xterm-256color", **extra}
    process = subprocess.Popen(
        command, cwd=where, stdin=terminal, stdout=terminal, stderr=terminal, env=environment, start_new_session=True
    )
    os.close(terminal)
    shown = b""
    with selectors.DefaultSelector() as selector:
        selector.register(screen, selectors.EVENT_READ)
        while time.monotonic() - started < MAX_STEP_SECONDS:
            if not selector.select(timeout=1.0):
                continue
            try:
                text = os.read(screen, 65536)
            except OSError:  # it has ended
                text = b""
            now = time.monotonic()
            if text != shown or not text:  # a line that is only drawn again tells nothing
                silence, heard, shown = max(silence, now - heard), now, text
            if not text:
                break
        else:
            process.kill()
    os.close(screen)
    return process.wait(), time.monotonic() - started, silence


def report(name: str, code: int, seconds: float, silence: float) -> None:
    """Print a step's row."""
    marks = (" FAILED" if code else "") + (" silent" if silence > MAX_SILENCE else "")
    print(f"{name:<60} {seconds:8.1f} {silence:16.1f}{marks}", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
