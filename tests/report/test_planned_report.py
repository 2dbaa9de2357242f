"""The report of a planned tree: value, bound and gap over time, the certificate, exact returns in place of episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import custard
from custard.core.mdp import FiniteMDP
from custard.planning.evaluate import policy_value, tree_value
from custard.planning.solve import optimal_value
from custard.planning.store import save
from custard.report import write_report
from custard.report.completion import complete_run
from custard.report.curves import draw_curves
from custard.report.html_page import metrics_rows
from custard.report.page_data import curves
from tests.planning.random_mdp import random_mdp
from tests.report.pages import SMALLEST_TEXT, Page, data_of

ENV = "custard.planning.env:FiniteMDP-v0"


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> tuple[custard.Run, FiniteMDP]:
    """A run on a discounted model whose episodes never end."""
    where = tmp_path_factory.mktemp("planned")
    mdp = random_mdp(4, 3, seed=3, gamma=0.9, ending=0.0)
    save(mdp, where / "model.npz")
    kwargs = {"path": str(where / "model.npz")}
    run = custard.learn(ENV, "plan", max_depth=2, env_kwargs=kwargs, out=where / "run", progress=False, seconds=600.0)
    with pytest.MonkeyPatch.context() as patch:  # episodes would go on for ever
        patch.setattr("custard.task.evaluate.evaluate", None)
        patch.setattr("custard.report.comparisons.evaluate", None)
        patch.setattr("custard.report.completion.evaluate", None)
        complete_run(run, ENV, kwargs, None)
    return run, mdp


def data(planned: tuple[custard.Run, FiniteMDP]) -> dict[str, Any]:
    assert planned[0].directory is not None
    return data_of(planned[0].directory / "report.html")


def test_value_bound_and_gap_are_drawn_over_time(planned: tuple[custard.Run, FiniteMDP]) -> None:
    run, _ = planned
    assert run.directory is not None
    rows = metrics_rows(run.directory / "metrics.csv")
    course, gap, size = data(planned)["curves"]
    assert course["x"] == gap["x"] == [row["seconds"] for row in rows]
    assert course["xlabel"] == "seconds"
    value, bound = (np.array(series["values"]) for series in course["series"])
    assert value.tolist() == [row["value"] for row in rows]
    np.testing.assert_allclose(gap["series"][0]["values"], bound - value, atol=1e-9)
    assert (value <= bound + 1e-9).all()
    assert [series["name"] for series in size["series"]] == ["leaves", "depth"]
    assert [axes.get_ylabel() for axes in draw_curves(rows).axes] == ["return", "gap", "tree size"]


def test_what_is_learned_is_drawn_over_steps() -> None:
    charts = curves([{"steps": 0, "seconds": 0.1, "value": 1.0}, {"steps": 5, "seconds": 0.2, "value": 2.0}])
    assert [(chart["x"], chart["xlabel"], chart["band"]) for chart in charts] == [([0, 5], "environment steps", False)]


def test_what_was_planned_at_one_go_has_no_course() -> None:
    assert curves([{"steps": 0, "seconds": 0.9, "value": 47.77, "bound": 47.77, "gap": 0.0}]) == []


def test_the_certificate_is_shown(planned: tuple[custard.Run, FiniteMDP]) -> None:
    run, mdp = planned
    told = dict(data(planned)["proof"])
    certificate = run.tree.origin["certificate"]
    assert list(told) == ["Value", "Bound", "Gap", "Tolerance", "How", "Best policy"]
    assert float(told["Value"].split(":")[0]) == pytest.approx(tree_value(run.tree, mdp))
    assert "discounted by 0.9" in told["Value"]
    assert float(told["Bound"].split(":")[0]) == pytest.approx(certificate["bound"])
    assert "no tree of depth ≤ 2 returns more" in told["Gap"]
    assert told["How"] == certificate["how"]
    audit = {part["title"]: dict(part["items"]) for part in data(planned)["audit"]}
    assert "proved: no tree of depth ≤ 2 returns more" in audit["What was verified"]["Return and bound"]
    assert "exact, computed from the model" in audit["Metrics"]["Return"]
    assert audit["Data it was learned from"]["Source"].startswith("The exact model of")


def test_a_discounted_return_is_exact_and_compared_exactly(planned: tuple[custard.Run, FiniteMDP]) -> None:
    run, mdp = planned
    shown = data(planned)
    assert shown["evaluation"] is None
    facts = {name: (value, beside) for name, value, beside in shown["facts"]}
    assert float(facts["Return"][0].replace("−", "-")) == pytest.approx(tree_value(run.tree, mdp), rel=1e-4)
    assert facts["Return"][1] == "exact, discounted by 0.9"
    assert "Planned in" in facts
    assert "Learned in" not in facts
    means = {entry["kind"]: entry["mean"] for entry in shown["comparisons"]}
    assert means["tree"] == pytest.approx(tree_value(run.tree, mdp))
    assert means["optimum"] == pytest.approx(optimal_value(mdp))
    constant = [policy_value(np.full(mdp.n_states, action), mdp) for action in range(mdp.actions.n)]
    assert means["constant"] == pytest.approx(max(constant))
    assert means["random"] < means["tree"] <= means["optimum"] + 1e-9
    assert not any("episodes" in sentence or "interval" in sentence for sentence in shown["judgement"])
    assert shown["judgement"][-1] == "It is better than random and constant actions."
    assert abs(shown["replay"]["total"][-1]) <= np.abs(mdp.rewards).max() / (1 - mdp.gamma)


def test_a_return_that_episodes_show_is_still_measured(tmp_path: Path) -> None:
    run = custard.learn("custard/PrereqWorld-v0", "plan", env_kwargs={"m": 4}, out=tmp_path / "run", progress=False)
    shown = data_of(write_report(run.directory, episodes=5))  # type: ignore[arg-type]
    assert shown["evaluation"]["mean"] == -2
    assert dict(shown["proof"])["Value"].startswith("-2:")
    assert [chart["ylabel"] for chart in shown["curves"]] == ["return", "gap", "tree size"]


def test_the_page_draws_it(browser: Any, planned: tuple[custard.Run, FiniteMDP]) -> None:
    assert planned[0].directory is not None
    shown = Page(browser, planned[0].directory / "report.html", viewport={"width": 1280, "height": 844})
    assert shown.page.inner_text("#h-curves").lower() == "value, bound and gap over time"
    assert shown.page.locator("#curve-charts svg").count() == 3
    assert shown.page.locator("#curve-charts svg:first-child path").count() == 3  # the gap's area, value and bound
    assert "no tree of depth ≤ 2 returns more" in shown.page.inner_text("#proof")
    for width in (1280, 390):
        shown.page.set_viewport_size({"width": width, "height": 844})
        assert shown.page.evaluate(SMALLEST_TEXT)[0] >= 11
        assert shown.page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    shown.close()
