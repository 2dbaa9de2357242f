"""The same seed gives the same tree: small runs of every method against stored trees."""

import json

import pytest

from tests.golden.cases import TREES, as_text, cases

STORED = [case for case in cases() if (TREES / f"{case.name}.json").exists()]


@pytest.mark.parametrize("case", STORED, ids=lambda case: case.name)
@pytest.mark.filterwarnings("ignore")
def test_a_seed_gives_the_stored_tree(case):
    stored = json.loads((TREES / f"{case.name}.json").read_text())
    assert json.loads(as_text(case.run())) == stored


def test_stored_trees_belong_to_cases():
    assert {file.stem for file in TREES.glob("*.json")} == {case.name for case in STORED}
    assert len(STORED) >= 30
