"""PRISM, JANI and DRN models: the same answers as by hand, and mistakes in one line."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import custard
from custard.commands.plan import Command
from custard.planning.optimal_tree import best_tree
from custard.planning.solve import optimal_value
from custard.planning.storm import load_with_storm

stormpy: Any = pytest.importorskip("stormpy", reason='needs the extra "storm"')

#: Three steps forward; the wrong button sends back to the start and costs more. What is right alternates with y.
PROGRAM = """mdp
const int N;
module m
  x : [0..N] init 0;
  y : bool init false;
  [a] x<N & !y -> 0.5:(x'=x+1)&(y'=true) + 0.5:true;
  [b] x<N & !y -> (x'=0);
  [a] x<N & y -> (x'=0);
  [b] x<N & y -> 0.5:(x'=x+1)&(y'=false) + 0.5:true;
  [wait] x<N & y -> true;
  [] x=N -> true;
endmodule
rewards "cost"
  [a] true : 1;
  [b] true : y ? 1 : 3;
  [wait] true : 1;
endrewards
label "done" = x=N;
"""


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "alternate.prism"
    path.write_text(PROGRAM)
    return path


@pytest.mark.parametrize(
    ("asked", "value", "depth"),
    [('R{"cost"}min=? [F "done"]', -6.0, 1), ("Pmax=? [F x=N]", 1.0, 1), ("Pmax=? [F<=3 x=N]", 0.125, 1),
     ("Pmin=? [F<=3 x=N]", 0.0, 0), ("Pmax=? [x<2 U x=2]", 1.0, 1)],
)  # fmt: skip
def test_properties(program: Path, asked: str, value: float, depth: int) -> None:
    mdp = load_with_storm(program, asked, constants={"N": 3})
    assert (mdp.features.names, mdp.actions.names) == (("x", "y"), ("a", "b", "wait"))
    assert optimal_value(mdp) == pytest.approx(value, abs=1e-9)
    found = best_tree(mdp, 1, seconds=10)
    assert (found.value, found.tree.depth) == (pytest.approx(value, abs=1e-9), depth)
    assert found.optimal


def test_discounted_rewards(program: Path) -> None:
    mdp = load_with_storm(program, 'R{"cost"}max=? [C]', constants={"N": 3}, gamma=0.9)
    found = best_tree(mdp, 1, seconds=10)
    assert found.value == pytest.approx(3.0 / (1.0 - 0.9))  # b for ever
    assert found.optimal


def test_jani_and_drn_are_the_same_model(tmp_path: Path) -> None:
    text = PROGRAM.replace("const int N;", "const int N = 3;")
    (tmp_path / "three.prism").write_text(text)
    parsed = stormpy.parse_prism_program(str(tmp_path / "three.prism"))
    options = stormpy.BuilderOptions()
    options.set_build_choice_labels()
    options.set_build_all_labels()
    options.set_build_all_reward_models()
    stormpy.io.export_to_drn(stormpy.build_model(parsed, options=options), str(tmp_path / "three.drn"))
    drn = load_with_storm(tmp_path / "three.drn", 'R{"cost"}min=? [F "done"]')
    assert optimal_value(drn) == pytest.approx(-6.0)
    assert drn.features.names == ("state",)
    stormpy.io.export_jani_to_file(tmp_path / "three.jani", parsed.to_jani())
    jani = load_with_storm(tmp_path / "three.jani", 'R{"cost"}min=? [F "done"]')
    assert optimal_value(jani) == pytest.approx(-6.0)
    assert jani.features.names == ("x", "y")


@pytest.mark.parametrize(
    ("text", "asked", "said"),
    [(PROGRAM, 'R{"cost"}min=? [F x=', "Storm cannot read"), (PROGRAM, 'R{"fun"}min=? [F "done"]', "no rewards 'fun'"),
     (PROGRAM, 'P>=0.5 [F "done"]', "minimise or maximise"), (PROGRAM, 'Pmax=? [G "done"]', "not supported"),
     (PROGRAM, 'R{"cost"}max=? [C]', "discount below 1"), ("mdp\nmodule", 'Pmax=? [F "done"]', "Storm cannot read"),
     (PROGRAM.replace("0.5:true", "0.6:true"), 'Pmax=? [F "done"]', "sums to 1.1"), ("", 'Pmax=? [F "done"]', "Storm"),
     ("dtmc\nconst int N;\nmodule m\nx:[0..1] init 0;\n[]true->1:(x'=1);\nendmodule\nlabel \"done\" = x=1;\n",
      'Pmax=? [F "done"]', "plan needs an MDP")],
)  # fmt: skip
def test_mistakes_are_one_line(tmp_path: Path, text: str, asked: str, said: str) -> None:
    path = tmp_path / "model.prism"
    path.write_text(text)
    with pytest.raises(custard.CustardError, match=said) as mistake:
        load_with_storm(path, asked, constants={"N": 3})
    assert "\n" not in str(mistake.value)


def test_undefined_constants_are_one_line(program: Path) -> None:
    with pytest.raises(custard.CustardError, match="undefined constants"):
        load_with_storm(program, 'R{"cost"}min=? [F "done"]')


@pytest.mark.parametrize(
    ("changed", "said"),
    [({"property": 'R{"cost"}min=? [F "gone"]'}, "gone"), ({"property": ""}, "one property, not 0"),
     ({"property": 'Pmax=? [F "done"]; Pmax=? [F x=1]'}, "one property, not 2"), ({"seconds": math.nan}, "positive"),
     ({"property": "Pmax=? [F zz=1]"}, "Storm cannot read"), ({"property": "Pmax=? [F>=2 x=3]"}, "one upper bound"),
     ({"constants": ("N=zebra",)}, "zebra"), ({"constants": ("M=3",)}, "'M'"), ({"constants": ("N=-3",)}, "Lower"),
     ({"max_depth": -1}, "max_depth"), ({"gamma": 2.0}, "gamma"), ({"zeta": 1.0}, "price of a question"),
     ({"out": Path("nowhere/tree.json")}, "no folder nowhere"), ({"out": Path("tree.png")}, "end in .json"),
     ({"start": "nowhere.json"}, "cannot read nowhere.json"), ({"env_args": ("m=3",)}, "for environments"),
     ({"property": 'R{"cost"}max=? [F "done"]'}, "gaining for ever|gains for ever|settle")],
)  # fmt: skip
def test_mistakes_of_the_command_are_one_line(program: Path, changed: dict[str, Any], said: str) -> None:
    given = {"max_depth": 1, "property": 'R{"cost"}min=? [F "done"]', "constants": ("N=3",), "seconds": 2.0, **changed}
    with pytest.raises(custard.CustardError, match=said) as mistake:
        Command(str(program), json=True, **given).run()
    assert "\n" not in str(mistake.value)


@pytest.mark.parametrize("name", ["model.jani", "model.drn", "model.prism"])
@pytest.mark.parametrize("content", [b"", b"{}", b"\xff\xfe\x00", b"@type: MDP"])
def test_files_that_are_no_models_are_one_line(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(custard.CustardError, match="Storm cannot read") as mistake:
        load_with_storm(tmp_path / name, 'R{"cost"}min=? [F "done"]')
    assert "\n" not in str(mistake.value)


def test_a_model_larger_than_memory_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Storm has no limit of its own: the process has, while it builds."""
    counters = "\n".join(f"  {name} : [0..300] init 0;\n  [{name}] {name}<300 -> ({name}'={name}+1);" for name in "abc")
    text = f'mdp\nmodule m\n{counters}\nendmodule\nlabel "done" = a=300;\n'
    declared = [line for line in text.splitlines() if ":" in line and "init" in line]
    rest = [line for line in text.splitlines() if line not in declared]
    (tmp_path / "large.prism").write_text("\n".join([*rest[:2], *declared, *rest[2:]]))
    monkeypatch.setattr("custard.planning.storm.available_memory", lambda: 300 * 2**20)
    with pytest.raises(custard.CustardError, match="GiB of memory"):
        load_with_storm(tmp_path / "large.prism", 'Pmax=? [F "done"]')


def test_the_command_keeps_a_certificate(program: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "tree.json"
    Command(
        str(program), max_depth=1, property='R{"cost"}min=? [F "done"]', constants=("N=3",), out=out, json=True
    ).run()
    said = json.loads(capsys.readouterr().out)
    assert (said["value"], said["bound"], said["proved"], said["tree"]["depth"]) == (-6.0, pytest.approx(-6.0), True, 1)
    tree = custard.Tree.load(out)
    assert tree.origin["certificate"]["proved"]
    assert np.array_equal(tree.predict(np.array([[0.0, 0.0], [0.0, 1.0]])), [0, 1])
    with pytest.raises(custard.CustardError, match="needs --property"):
        Command(str(program)).run()
    with pytest.raises(custard.CustardError, match="for PRISM"):
        Command("FrozenLake-v1", property="Pmax=? [F x]").run()
