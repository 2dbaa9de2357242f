"""Mutation testing: small changes to code that claims something, each of which a test must notice.

    python benchmarks/mutants.py [MODULE …] [--count 300] [--seed 0] [--out results/mutants.csv] [--list] [--summary]

A module is one of TARGETS, such as tree/verify. For each, `--count` random changes are tried: another comparison, `and`
for `or`, plus for minus, a constant one larger, a condition negated, min for max. Every change runs in a fork of this
process, in which the functions' code is replaced and the module's tests run until one fails, those first that notice
most per second. Functions that numba compiles are left as they are, but in modules of COMPILED: there compilation is
off, in a process of their own. A change that no test notices is printed with its line; `mutants_explained.py` names
those that cannot matter, which are not tried.

Every outcome is a row of the CSV at once. The same command again tries what is missing, and what no test had noticed;
a changed module is tried anew. `--summary` prints the scores of what is stored.
"""

from __future__ import annotations

import argparse
import ast
import copy
import csv
import hashlib
import importlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]

import hypothesis  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

from benchmarks.mutants_explained import EXPLAINED  # noqa: E402
from custard.core import threads  # noqa: E402

#: module -> tests that must notice its changes
TARGETS = {
    "tree/verify": ["tests/tree/test_verify.py", "tests/tree/test_linear_verify.py"],
    "tree/explain": ["tests/tree/test_explain.py", "tests/tree/test_linear_explain.py"],
    "tree/extract": ["tests/tree/test_extract.py", "-k", "not fill_the_memory"],
    "tree/simplify": ["tests/tree/test_simplify.py"],
    "tree/rounding": ["tests/tree/test_rounding.py", "tests/tree/test_verify.py"],
    "tree/certificate": ["tests/tree/test_certificate.py"],
    "planning/branch": ["tests/planning/test_branch.py", "-k", "not kind1 and not kind5"],
    "planning/labelling": ["tests/planning/test_labelling.py"],
    "planning/optimal_tree": [
        "tests/planning/test_plan_claims.py", "tests/planning/test_optimal_tree.py",
        "-k", "test_plan_claims or equals_exhaustive or handed_in or without_time or any_size",
    ],
    "planning/evaluate": ["tests/planning/test_evaluate.py"],
    "planning/solve": ["tests/planning/test_solve.py", "-k", "not storm and not toy_text and not keep_the_lane"],
    "planning/reach": ["tests/planning/test_reach.py"],
    "planning/points": ["tests/planning/test_points.py"],
    "planning/agreement": ["tests/planning/test_agreement.py"],
    "planning/relaxation": ["tests/planning/test_relaxation.py"],
    "planning/reduced": ["tests/planning/test_reduced.py"],
    "planning/constraint_search": ["tests/planning/test_relaxation.py"],
    "planning/return_bounds": ["tests/planning/test_return_bounds.py"],
    "task/evaluate": ["tests/task/test_evaluate.py", "tests/task/test_vector_episodes.py"],
}  # fmt: skip
#: Modules whose compiled functions are the proof: they run as Python here, and are changed too.
COMPILED = {
    "planning/agreement", "planning/relaxation", "planning/reduced", "planning/constraint_search",
    "planning/return_bounds",
}  # fmt: skip
#: Processor seconds of one test under a change, at the least; eight times what it takes without one if that is more.
#: Beyond, the change made it run on and counts as noticed.
MIN_SECONDS = 2.0
MAX_WAIT = 600  # seconds, for a change that makes the tests wait
COLUMNS = ("module", "source", "number", "line", "change", "text", "outcome", "test", "seconds")

#: Of pytest: nothing is captured, since the scores are printed while it runs.
OPTIONS = ["-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "-W", "ignore", "--no-header", "--no-summary"]

COMPARISONS: dict[type, tuple[type, ...]] = {
    ast.Lt: (ast.LtE, ast.GtE), ast.LtE: (ast.Lt, ast.Gt), ast.Gt: (ast.GtE, ast.LtE), ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,), ast.NotEq: (ast.Eq,), ast.Is: (ast.IsNot,), ast.IsNot: (ast.Is,), ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}  # fmt: skip
OPERATORS: dict[type, type] = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd, ast.Pow: ast.Mult,
}  # fmt: skip
NAMES = {
    "min": "max", "max": "min", "any": "all", "all": "any", "minimum": "maximum", "maximum": "minimum",
    "floor": "ceil", "ceil": "floor", "fmin": "fmax", "fmax": "fmin", "argmin": "argmax", "argmax": "argmin",
    "zeros": "ones", "children_left": "children_right", "children_right": "children_left", "low": "high", "high": "low",
}  # fmt: skip
SKIPPED = (ast.Raise, ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Assert)

Change = tuple[int, str, Callable[[ast.AST], None]]


def changes(tree: ast.AST) -> Iterator[Change]:
    """Yield every change: the number of the node in `nodes_of`, what it is, and the function that makes it."""
    for number, node in enumerate(nodes_of(tree)):
        if isinstance(node, ast.Compare):
            for place, operator in enumerate(node.ops):
                for other in COMPARISONS[type(operator)]:
                    yield number, f"{type(operator).__name__} to {other.__name__}", _set_comparison(place, other)
        elif isinstance(node, ast.BoolOp):
            other = ast.Or if isinstance(node.op, ast.And) else ast.And
            yield number, f"{type(node.op).__name__} to {other.__name__}", _set(op=other)
        elif isinstance(node, (ast.BinOp, ast.AugAssign)) and type(node.op) in OPERATORS:
            other = OPERATORS[type(node.op)]
            yield number, f"{type(node.op).__name__} to {other.__name__}", _set(op=other)
        elif isinstance(node, ast.Constant) and type(node.value) in (int, float, bool):
            value = not node.value if isinstance(node.value, bool) else node.value + 1
            yield number, f"{node.value} to {value}", _set_value(value)
        elif isinstance(node, (ast.If, ast.While, ast.IfExp)):
            yield number, "condition negated", _negate
        elif isinstance(node, ast.Attribute) and node.attr in NAMES:
            yield number, f"{node.attr} to {NAMES[node.attr]}", _rename("attr")
        elif isinstance(node, ast.Name) and node.id in NAMES and isinstance(node.ctx, ast.Load):
            yield number, f"{node.id} to {NAMES[node.id]}", _rename("id")


def nodes_of(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes inside functions, without annotations, messages, and what only types are checked for."""

    def inside(node: ast.AST) -> Iterator[ast.AST]:
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "args") and not isinstance(node, ast.Call):
                continue
            for child in value if isinstance(value, list) else [value]:
                is_strict = isinstance(child, ast.keyword) and child.arg == "strict"  # lengths that are never different
                if isinstance(child, ast.AST) and not isinstance(child, SKIPPED) and not is_strict:
                    yield child
                    yield from inside(child)

    is_plain = os.environ.get("NUMBA_DISABLE_JIT") == "1"
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and (
            is_plain or not any("njit" in ast.unparse(each) for each in node.decorator_list)
        ):
            for part in node.body:
                if not isinstance(part, (*SKIPPED, ast.FunctionDef)):
                    yield part
                    yield from inside(part)


def _set_comparison(place: int, other: type) -> Callable[[Any], None]:
    return lambda node: node.ops.__setitem__(place, other())


def _set(op: type) -> Callable[[Any], None]:
    return lambda node: setattr(node, "op", op())


def _set_value(value: Any) -> Callable[[Any], None]:
    return lambda node: setattr(node, "value", value)


def _rename(field: str) -> Callable[[Any], None]:
    return lambda node: setattr(node, field, NAMES[getattr(node, field)])


def _negate(node: Any) -> None:
    node.test = ast.UnaryOp(ast.Not(), node.test)


# -- one change -------------------------------------------------------------------------------------------------------


def replace_code(module: Any, tree: ast.Module) -> None:
    """Give the functions of a module that is loaded already the code of a changed tree, for all who imported them."""
    fresh: dict[str, Any] = {**vars(module)}
    exec(compile(ast.fix_missing_locations(tree), module.__file__, "exec"), fresh)
    _replace(vars(module), fresh)


def _replace(old: Any, new: Any) -> None:
    for name, before in list(old.items()):
        after = new.get(name)
        one, two = (_function_of(part) for part in (before, after))
        if one is not None and two is not None:
            if one.__code__.co_freevars == two.__code__.co_freevars and one.__module__ == two.__module__:
                one.__code__, one.__defaults__, one.__kwdefaults__ = two.__code__, two.__defaults__, two.__kwdefaults__
        elif isinstance(before, type) and isinstance(after, type) and before.__module__ == after.__module__:
            _replace(dict(vars(before)), dict(vars(after)))


def _function_of(part: Any) -> FunctionType | None:
    for name in ("fget", "func", "__func__"):
        part = getattr(part, name, part)
    return part if isinstance(part, FunctionType) else None


def fork(work: Callable[[int], int]) -> tuple[int, bytes]:
    """Run a function in a fork, without output; return its exit status and what it wrote to the pipe it is given."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            signal.alarm(MAX_WAIT)
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), 1)
                os.dup2(nowhere.fileno(), 2)
            threads._pool.cache_clear()  # its threads did not come along
            code = work(writing)
        finally:
            os._exit(code)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    return os.waitpid(child, 0)[1], said


def run_tests(session: Any, items: list[Any], limits: dict[str, float], pipe: int) -> int:
    """Run tests until one fails or uses more processor seconds than its limit; write each one's number and seconds."""
    for k, (item, following) in enumerate(zip(items, [*items[1:], None], strict=True)):
        begun = time.process_time()
        os.write(pipe, f"{k} ".encode())
        signal.setitimer(signal.ITIMER_PROF, limits.get(item.nodeid, 600.0))  # which ends the process
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        os.write(pipe, f"{time.process_time() - begun}\n".encode())
        if session.testsfailed:
            return 1
    return 0


class Mutations:
    """Tests the tests of one module where pytest would run them: what is collected and loaded once serves every change.

    rows     outcomes known so far by number of the change, new ones added
    is_sane  whether the tests pass without any change
    """

    def __init__(self, name: str, store: Store) -> None:
        self.name, self.store = name, store
        self.module = importlib.import_module(f"custard.{name.replace('/', '.')}")
        self.source = Path(self.module.__file__ or "").read_text()
        self.tree = ast.parse(self.source)
        self.found = list(changes(self.tree))
        self.nodes, self.lines = list(nodes_of(self.tree)), self.source.splitlines()
        self.digest = hashlib.sha256(self.source.encode()).hexdigest()[:12]
        self.order: list[int] = []

    def chosen(self, count: int, seed: int) -> list[int]:
        return [int(k) for k in np.random.default_rng(seed).permutation(len(self.found))[:count]]

    def pytest_runtestloop(self, session: Any) -> bool:
        """Run the tests twice as they are, where the second time tells what they cost, then once per change."""
        items = list(session.items)
        if session.testsfailed or any(
            run_tests(session, items, {}, os.open(os.devnull, os.O_WRONLY)) for _ in range(1)
        ):
            print(f"{self.name}: its tests fail without any change")
            return True
        status, said = fork(lambda pipe: run_tests(session, items, {}, pipe))
        if status:
            print(f"{self.name}: its tests fail in a fork, without any change")
            return True
        costs = {items[int(k)].nodeid: float(t) for k, t in (line.split() for line in said.decode().splitlines())}
        limits = {name: max(MIN_SECONDS, 8 * cost) for name, cost in costs.items()}
        print(f"{self.name}: tests take {sum(costs.values()):.1f} processor seconds", flush=True)
        known = self.store.outcomes(self.name, self.digest)
        noticed_by = dict.fromkeys(costs, 0)
        for row in known.values():
            if row["test"] in noticed_by:
                noticed_by[row["test"]] += 1
        tried = dict.fromkeys(costs, 0)
        for number in self.order:
            if known.get(number, {}).get("outcome") == "noticed":
                continue
            if self.is_explained(number):
                if number not in known:
                    self.store.add({**self.place(number), "outcome": "explained", "test": "", "seconds": 0.0})
                continue
            items.sort(key=lambda item: (0.02 + costs[item.nodeid]) * (tried[item.nodeid] + 2)
                       / (noticed_by[item.nodeid] + 0.3))  # fmt: skip
            begun = time.monotonic()
            status, said = fork(lambda pipe, number=number: self.try_change(session, number, items, limits, pipe))  # type: ignore[misc]
            ran = [items[int(line.split()[0])].nodeid for line in said.decode().splitlines() if line]
            for test in ran:
                tried[test] += 1
            test = ran[-1] if status and ran else ""
            if test:
                noticed_by[test] += 1
            self.store.add({
                **self.place(number), "outcome": "noticed" if status else "survived", "test": test,
                "seconds": round(time.monotonic() - begun, 2),
            })  # fmt: skip
            if not status:
                print(self.survivor(number), flush=True)
        return True

    def try_change(self, session: Any, number: int, items: list[Any], limits: dict[str, float], pipe: int) -> int:
        at, _, make = self.found[number]
        changed = copy.deepcopy(self.tree)
        make(next(node for k, node in enumerate(nodes_of(changed)) if k == at))
        replace_code(self.module, changed)
        return run_tests(session, items, limits, pipe)

    def place(self, number: int) -> dict[str, Any]:
        at, what, _ = self.found[number]
        line = getattr(self.nodes[at], "lineno", 0)
        return {
            "module": self.name, "source": self.digest, "number": number, "line": line, "change": what,
            "text": self.lines[line - 1].strip(),
        }  # fmt: skip

    def is_explained(self, number: int) -> bool:
        place = self.place(number)
        return (self.name, place["change"], place["text"]) in EXPLAINED

    def survivor(self, number: int) -> str:
        place = self.place(number)
        reason = EXPLAINED.get((self.name, place["change"], place["text"]))
        return f"  {self.name}:{place['line']}: {place['change']}: {place['text']}" + (
            f"  ({reason})" if reason else ""
        )

    def summary(self) -> str:
        """Return how many of the chosen changes were tried, noticed and explained, and those that were not."""
        known = self.store.outcomes(self.name, self.digest)
        rows = [known[number] for number in self.order if number in known]
        survived = [int(row["number"]) for row in rows if row["outcome"] != "noticed"]
        texts = [self.survivor(number) for number in survived]
        explained = sum(self.is_explained(number) for number in survived)
        noticed = len(rows) - len(survived)
        share = 100 * (noticed + explained) / max(1, len(rows))
        return "\n".join([
            *texts, f"{self.name}: {len(rows)} of {len(self.found)} changes, {noticed} noticed, {explained} explained: "
            f"{share:.0f} %",
        ])  # fmt: skip


class Store:
    """Outcomes in a CSV; of several for one change the last one counts."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def outcomes(self, module: str, digest: str) -> dict[int, dict[str, str]]:
        if not self.file.exists():
            return {}
        with self.file.open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if (row["module"], row["source"]) == (module, digest)]
        return {int(row["number"]): row for row in rows}

    def add(self, row: dict[str, Any]) -> None:
        is_new = not self.file.exists()
        with self.file.open("a", newline="") as file:
            writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerow(row)


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", default=list(TARGETS))
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=ROOT / "results" / "mutants.csv")
    parser.add_argument("--list", action="store_true", help="count the possible changes and stop")
    parser.add_argument("--summary", action="store_true", help="print the scores of stored outcomes and stop")
    given = parser.parse_args(words)
    given.out = given.out.resolve()
    os.chdir(ROOT)
    hypothesis.settings.register_profile("mutants", phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate])
    hypothesis.settings.load_profile("mutants")  # a failure is enough: it need not be made smaller
    for name in given.modules:
        if name in COMPILED and os.environ.get("NUMBA_DISABLE_JIT") != "1":
            options = [word for word in words if word not in TARGETS]
            subprocess.run(
                [sys.executable, __file__, name, *options], env={**os.environ, "NUMBA_DISABLE_JIT": "1"}, check=True
            )
            continue
        mutations = Mutations(name, Store(given.out))
        mutations.order = mutations.chosen(given.count, given.seed)
        if given.list:
            print(f"{name}: {len(mutations.found)} changes")
            continue
        if not given.summary:
            pytest.main([*TARGETS[name], *OPTIONS], plugins=[mutations])
        print(mutations.summary(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
