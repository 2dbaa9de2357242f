"""A bounded part of the attacks; `make hostile` runs all of them."""

import pytest

from tests.hostile import assertions, command_lines, files, trees


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("attack", "count"),
    [(trees.attack, 250), (files.attack, 250), (assertions.attack, 100), (command_lines.attack, 70)],
    ids=["trees", "files", "assertions", "command lines"],
)
def test_attacks_find_nothing(attack, count):
    assert attack(count, seed=1) == []
