import pytest

import custard
from custard.errors import CustardError
from custard.lab.seeds_at_once import learn_seeds

PREREQ = "custard/PrereqWorld-v0"


def test_each_seed_gives_what_it_gives_alone():
    given = dict(env_kwargs={"m": 4}, budget=20_000)
    runs = learn_seeds(PREREQ, "mfec", seeds=[3, 5], workers=2, **given)
    for run in runs:
        alone = custard.learn(PREREQ, "mfec", seed=run.seed, **given)
        assert run.tree == alone.tree
        assert (run.value, run.steps, run.message) == (alone.value, alone.steps, alone.message)


def test_errors_say_which_seed():
    with pytest.raises(CustardError, match=r"seed 4.*nothing"):
        learn_seeds(PREREQ, "mfec", seeds=[4], workers=0, nothing=1)
    with pytest.raises(CustardError, match="id"):
        learn_seeds(object(), "mfec")
