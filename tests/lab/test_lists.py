"""What `custard.methods`, `custard.settings`, `custard.load` and the types of keywords say is what there is."""

import importlib.util
import inspect
from pathlib import Path

import pytest

import custard
from custard import CustardError
from custard.lab import keywords
from custard.lab.learn import learn
from custard.lab.methods import METHODS, _first_sentence
from custard.task.settings import setting_names

ROOT = Path(__file__).parents[2]


def test_methods_have_a_line_each():
    listed = custard.methods()
    assert list(listed) == list(METHODS)
    assert all(20 < len(text) < 120 and "\n" not in text for text in listed.values())
    assert _first_sentence("custard.baselines.viper_bi").startswith("VIPER with backward induction as the expert")


@pytest.mark.parametrize("name", METHODS)
def test_every_setting_says_what_it_does(name):
    for preset in ("tuned", "paper"):
        try:
            listed = custard.settings(name, preset)
        except CustardError as error:
            if "unknown preset" in str(error):
                continue
            pytest.skip(str(error))  # an extra that is not installed here
        assert [entry.name for entry in listed if not entry.about] == []
        assert str(listed).startswith(f"settings of {name}, preset {preset}\n")


def test_settings_by_name():
    listed = custard.settings()
    assert listed.method == "tpi"
    assert listed["random_action_share"].default == 0.1
    assert "at random" in listed["random_action_share"].about
    assert "random_action_share" in listed._repr_html_()
    assert listed["noise"] is listed["random_action_share"], "by its former name"
    with pytest.raises(CustardError, match="did you mean 'patience'"):
        listed["patiense"]


def test_the_types_of_keywords_are_those_of_the_methods():
    if importlib.util.find_spec("jax") is None:
        pytest.skip("jax is not installed")
    how = "run: python docs/scripts/write_keywords.py > /tmp/k.py && mv /tmp/k.py src/custard/lab/keywords.py"
    options = set(inspect.signature(learn).parameters) - {"env", "method", "seeds", "settings"}
    assert set(keywords.LearnOptions.__annotations__) == options, how
    modules = [importlib.import_module(module) for module in METHODS.values()]
    settings = {name for module in modules for name in setting_names(module)} - options
    assert set(keywords.MethodSettings.__annotations__) == settings, how


def test_a_misspelt_keyword_is_named():
    for method in ("tpi", "plan"):
        with pytest.raises(CustardError, match=r"unknown setting 'max_detph'.*did you mean 'max_depth'"):
            custard.learn("custard/PrereqWorld-v0", method, max_detph=3)


def test_a_run_shows_and_loads_itself(tmp_path):
    run = custard.learn("custard/PrereqWorld-v0", "plan", env_kwargs={"m": 2}, out=tmp_path / "run")
    assert repr(run).startswith("Run(method plan, environment custard/PrereqWorld-v0, seed 0, tree of depth ")
    assert "\n" not in repr(run)
    assert "<svg" in run._repr_html_()
    again = custard.Run.load(tmp_path / "run")
    assert (again.tree, again.config, again.value) == (run.tree, run.config, run.value)
    assert custard.load(tmp_path / "run") == custard.load(str(tmp_path / "run" / "tree.json")) == custard.load(run)
    assert "edited" not in run.tree.origin
    result = custard.evaluate(run.tree, episodes=3)  # where it was learned, m=2 included
    assert result.mean == run.value
    assert repr(result).startswith("Evaluation(mean=-1.00, std=0.00, episodes=3")
    assert "95 % interval" in result._repr_html_()
    with pytest.raises(CustardError, match="tree file, a run directory or a run"):
        custard.load(3)
    nowhere = custard.Tree.leaf(0, run.tree.features, run.tree.actions)
    with pytest.raises(CustardError, match="does not say where it was learned"):
        custard.evaluate(nowhere)
    with pytest.raises(CustardError, match="a function does not say where it acts"):
        custard.evaluate(nowhere.predict)
