"""Install a wheel into a clean environment, outside the repository, with base dependencies only, and use it.

python tests/package/clean_install.py dist/custard_rl-0.2.0-py3-none-any.whl [python3.12]

Fails unless `pip check` is content, the command line and the library work, and missing extras are named.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = """
import custard, pathlib, sys
assert "site-packages" in custard.__file__, custard.__file__
run = custard.learn("custard/PrereqWorld-v0", env_kwargs={"m": 3}, seed=0)
assert custard.evaluate(run.tree, episodes=5).mean == run.value
run.tree.save("tree.json")
run.tree.plot("tree.svg")
run.tree.export("c", "tree.c")
from custard.report import write_report
try:
    custard.learn("CartPole-v1", "dqn")
except custard.CustardError as error:
    assert "custard-rl[neural]" in str(error), error
else:
    sys.exit("dqn ran without jax")
assert (pathlib.Path(custard.__file__).parent / "py.typed").exists()
"""
COMMANDS = (
    "--version",
    "methods",
    "settings tpi",
    "train custard/PrereqWorld-v0 --env-args m=3 --episodes 5 --out run",
    "evaluate run --episodes 5",
    "show run --png tree.png",
    "export run --format rust",
    "report run --episodes 5",
)


def main(wheel: str, python: str = sys.executable) -> None:
    """Install, check, use."""
    wheel = str(Path(wheel).resolve())
    clean = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    with tempfile.TemporaryDirectory() as directory:

        def call(*words: str) -> None:
            print("+", " ".join(words[:6]).replace(directory, ""), flush=True)
            subprocess.run(words, check=True, cwd=directory, env=clean)

        call(python, "-m", "venv", "venv")
        inside = f"{directory}/venv/bin/python"
        call(inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel)
        call(inside, "-m", "pip", "--disable-pip-version-check", "check")
        Path(directory, "use.py").write_text(SCRIPT)
        call(inside, "use.py")
        for words in COMMANDS:
            call(f"{directory}/venv/bin/custard", *words.split())
    print("the wheel works")


if __name__ == "__main__":
    main(*sys.argv[1:])
