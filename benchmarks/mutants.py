"""Mutation testing: small changes to code that claims something, each of which a test must notice.

    python benchmarks/mutants.py [MODULE …] [--count 300] [--seed 0] [--list]

A module is one of TARGETS, such as tree/verify. For each, `--count` random changes are tried: another comparison, `and`
for `or`, plus for minus, a constant one larger, a condition negated, min for max. Every change runs in a fork of this
process, in which the functions' code is replaced and the module's tests run until one fails. Functions that numba
compiles are left as they are, but in modules of COMPILED: there compilation is off, in a process of their own. A change
that no test notices is printed with its line; `EXPLAINED` names those that cannot matter.
"""

from __future__ import annotations

import argparse
import ast
import copy
import importlib
import math
import os
import resource
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

from custard.core import threads  # noqa: E402

#: module -> tests that must notice its changes
TARGETS = {
    "tree/verify": ["tests/tree/test_verify.py", "tests/tree/test_linear_verify.py"],
    "tree/explain": ["tests/tree/test_explain.py", "tests/tree/test_linear_explain.py"],
    "tree/extract": ["tests/tree/test_extract.py", "-k", "not fill_the_memory"],
    "tree/simplify": ["tests/tree/test_simplify.py"],
    "tree/rounding": ["tests/tree/test_verify.py", "tests/tree/test_simplify.py"],
    "tree/certificate": ["tests/tree/test_certificate.py"],
    "planning/branch": ["tests/planning/test_optimal_tree.py"],
    "planning/labelling": ["tests/planning/test_optimal_tree.py"],
    "planning/optimal_tree": ["tests/planning/test_optimal_tree.py"],
    "planning/evaluate": ["tests/planning/test_evaluate.py"], "planning/solve": ["tests/planning/test_solve.py"],
    "planning/reach": ["tests/planning/test_reach.py"],
    "planning/points": ["tests/planning/test_relaxation.py"],
    "planning/agreement": ["tests/planning/test_agreement.py"],
    "planning/relaxation": ["tests/planning/test_relaxation.py"],
    "planning/reduced": ["tests/planning/test_reduced.py"],
    "planning/constraint_search": ["tests/planning/test_relaxation.py"],
    "task/evaluate": ["tests/task/test_evaluate.py"],
}  # fmt: skip
#: Modules whose compiled functions are the proof: they run as Python here, and are changed too.
COMPILED = {"planning/agreement", "planning/relaxation", "planning/reduced", "planning/constraint_search"}
#: Changes that no test can notice: module, change and text of the line, with the reason.
EXPLAINED: dict[tuple[str, str, str], str] = {
    ("tree/extract", "2 to 3",
     'warnings.warn(f"the policy would have asked for ever at {cut} node(s): cut there", stacklevel=2)'):
        "where a warning is shown",
    ("tree/extract", "zeros to ones",
     "numbers, v = _whole_numbers(answer).reshape(size), np.zeros(size)"): "v is not read in the discrete form",
    ("tree/simplify", "1 to 2", "for node in range(tree.n_nodes - 1, -1, -1):"):
        "-1 is the last node again, with the same class",
    ("tree/simplify", "0.0 to 1.0", "stack.append((kids[0][node], -1, 0.0))"): "read with the marks 0 and 2 only",
    ("tree/explain", "Lt to LtE",
     "return first if value < first else last  # NaN goes right, so that it has come to be at most `most`"):
        "a value equal to the box's first number lies in the box, for which the value itself was returned above",
    ("planning/agreement", "1 to 2", "least, most = sizes[feature[level]], -1"): "the first rank replaces it",
    ("planning/agreement", "0 to 1",
     "return np.bitwise_and.reduce(words[index], axis=0) if len(index) else words[:1].max(axis=0) | ~np.uint64(0)"):
        "of the part for no points: any action is right there",
    ("planning/agreement", "False to True",
     "low[level], found[level], high[level], on_right[level] = 0, -1, -1, False"): "set again with the first feature",
    ("planning/agreement", "zeros to ones",
     "feature, low, found = np.zeros(depth + 1, np.int64), np.zeros(depth + 1, np.int64), "
     "np.zeros(depth + 1, np.int64)"):
        "set again when a level is entered",
    ("planning/agreement", "low to high",
     "low[level], found[level], high[level], on_right[level] = least, least - 1, most - 1, False"):
        "a cut with nothing on its left is tried as well, which finds a tree only where there is one",
    ("planning/agreement", "Lt to LtE", "if depth == 0 or work[0] < 0:"): "gives up one point earlier",
    ("planning/relaxation", "Sub to Add", "drift = max(drift, abs(mine - policy.values[s]))"):
        "the inverse is computed anew once more than needed",
    ("planning/relaxation", "condition negated", "s = n - 1 - k if sweep % 2 == 0 else k"): "the order of the states",
}  # fmt: skip
#: Processor seconds of the tests for one change, at the least; five times what they take without one if that is more.
#: Beyond, the change made them run on and counts as noticed.
MIN_SECONDS = 20
MAX_WAIT = 1800  # seconds, for a change that makes them wait

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


def is_noticed(session: Any, module: Any, tree: ast.Module, change: Change, items: list[Any], seconds: int) -> bool:
    """Run the tests in a fork in which one node is changed; return whether one failed or they ran on."""
    number, _, make = change
    changed = copy.deepcopy(tree)
    make(next(node for k, node in enumerate(nodes_of(changed)) if k == number))
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(MAX_WAIT)
            resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
            with open(os.devnull, "w") as nowhere:
                os.dup2(nowhere.fileno(), 1)
                os.dup2(nowhere.fileno(), 2)
            threads._pool.cache_clear()  # its threads did not come along
            replace_code(module, changed)
            code = int(not passes(session, items))
        finally:
            os._exit(code)
    return os.waitpid(child, 0)[1] != 0


def passes(session: Any, items: list[Any]) -> bool:
    """Run collected tests until one fails."""
    for item, following in zip(items, [*items[1:], None], strict=True):
        session.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
        if session.testsfailed:
            return False
    return True


class Mutations:
    """Tests the tests of one module where pytest would run them: what is collected and loaded once serves every change.

    score  (changes, noticed, explained); None if a test fails without any change
    """

    def __init__(self, name: str, count: int, seed: int) -> None:
        self.name, self.count, self.seed = name, count, seed
        self.module = importlib.import_module(f"custard.{name.replace('/', '.')}")
        self.source = Path(self.module.__file__ or "").read_text()
        self.tree = ast.parse(self.source)
        self.found = list(changes(self.tree))
        self.durations: dict[str, float] = {}
        self.score: tuple[int, int, int] | None = None

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.durations[report.nodeid] = self.durations.get(report.nodeid, 0.0) + report.duration

    def pytest_runtestloop(self, session: Any) -> bool:
        """Run the tests once as they are, then once per change, the quickest first."""
        begun = time.process_time()
        if session.testsfailed or not passes(session, session.items):
            print(f"{self.name}: its tests fail without any change")
            return True
        took = time.process_time() - begun
        print(f"{self.name}: tests take {took:.1f} processor seconds", flush=True)
        items = sorted(session.items, key=lambda item: self.durations[item.nodeid])
        order = np.random.default_rng(self.seed).permutation(len(self.found))[: self.count]
        nodes, lines, noticed, explained = list(nodes_of(self.tree)), self.source.splitlines(), 0, 0
        for k in order.tolist():
            number, what, _ = self.found[k]
            seconds = math.ceil(max(MIN_SECONDS, 5 * took))
            if is_noticed(session, self.module, self.tree, self.found[k], items, seconds):
                noticed += 1
                continue
            line = getattr(nodes[number], "lineno", 0)
            text = lines[line - 1].strip()
            reason = EXPLAINED.get((self.name, what, text))
            explained += reason is not None
            print(f"  {self.name}:{line}: {what}: {text}" + (f"  ({reason})" if reason else ""), flush=True)
        self.score = len(order), noticed, explained
        return True


def main(words: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", default=list(TARGETS))
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="count the possible changes and stop")
    given = parser.parse_args(words)
    os.chdir(ROOT)
    hypothesis.settings.register_profile("mutants", phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate])
    hypothesis.settings.load_profile("mutants")  # a failure is enough: it need not be made smaller
    for name in given.modules:
        if name in COMPILED and os.environ.get("NUMBA_DISABLE_JIT") != "1":
            options = ["--count", str(given.count), "--seed", str(given.seed), *["--list"] * given.list]
            subprocess.run(
                [sys.executable, __file__, name, *options], env={**os.environ, "NUMBA_DISABLE_JIT": "1"}, check=True
            )
            continue
        mutations = Mutations(name, given.count, given.seed)
        if given.list:
            print(f"{name}: {len(mutations.found)} changes")
            continue
        pytest.main([*TARGETS[name], *OPTIONS], plugins=[mutations])
        if mutations.score is None:
            continue
        tried, noticed, explained = mutations.score
        share = 100 * (noticed + explained) / max(1, tried)
        print(
            f"{name}: {tried} of {len(mutations.found)} changes, {noticed} noticed, {explained} explained: "
            f"{share:.0f} %", flush=True,
        )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1:])
