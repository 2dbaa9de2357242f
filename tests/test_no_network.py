"""No network at run time: everything but Ray works with network sockets blocked."""

import os
import subprocess
import sys
from pathlib import Path

import custard

BLOCKED = """
import socket, sys
real = socket.socket

class Guard(real):
    def __init__(self, family=-1, *given, **named):
        if family not in (socket.AF_UNIX,) and named.get("fileno") is None and (len(given) < 3 or given[2] is None):
            raise PermissionError("a network socket was asked for")
        super().__init__(family, *given, **named)

def refuse(*given, **named):
    raise PermissionError("the network was asked for")

socket.socket = Guard
for name in ("create_connection", "getaddrinfo", "gethostbyname"):
    setattr(socket, name, refuse)
"""

WORK = """
import custard
from custard.cli import main

def call(*words):
    try:
        main([str(word) for word in words])
    except SystemExit as end:
        assert not end.code, (words, end.code)

call("train", "custard/PrereqWorld-v0", "--env-args", "m=2", "--method", "mfec", "--budget", 1000, "--episodes", 3,
     "--out", "run", "--json")
call("evaluate", "run", "--episodes", 3)
call("show", "run", "--svg", "tree.svg")
call("explain", "run")
call("export", "run", "--format", "c")
call("verify", "run", "--value")
call("report", "run", "--episodes", 2)
call("check", "FrozenLake-v1", "--steps", 50)
call("train", "FrozenLake-v1", "--budget", 2000, "--episodes", 2, "--out", "workers")
import socket
try:
    socket.socket(socket.AF_INET)
    raise SystemExit("nothing was blocked")
except PermissionError:
    print("done without a network")
"""


def test_nothing_needs_a_network(tmp_path):
    (tmp_path / "sitecustomize.py").write_text(BLOCKED)  # in this process and in every worker process
    paths = [str(tmp_path), str(Path(custard.__file__).parent.parent), os.environ.get("PYTHONPATH", "")]
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run(
        [sys.executable, "-c", WORK], cwd=tmp_path, env=variables, capture_output=True, text=True, timeout=600
    )
    assert "done without a network" in done.stdout, done.stdout[-1000:] + done.stderr[-2000:]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "http://" not in page.replace("http://www.w3.org/", "")
    assert "https://" not in page
