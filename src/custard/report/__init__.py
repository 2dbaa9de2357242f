"""The report: one HTML file that shows a run, offline. In reading order:

episodes     a tree's episodes step by step, with pictures
visits       what visited states say: which features decide, what is typical of each leaf
comparisons  the return beside random, constant, expert, threshold and optimum
audit        purpose, data, version, metrics, proofs, limits, oversight
page_data    everything the page shows, as plain data
html_page    the page: template.html, page.css and the scripts with the data in it
curves       the learning curve as a figure
completion   what completes a run directory: evaluation, picture, report

The scripts, in the order in which they run: model.js (data, the tree's arithmetic), tree.js (the drawing), outline.js
(the rows), policy.js (folding, overview, search, keys), leaf.js (one leaf explained), charts.js, regions.js (the plane
of two features), page.js (sliders, replay, audit, exports).
"""

from __future__ import annotations

from typing import Any

__all__ = ["write_report"]


def __getattr__(name: str) -> Any:
    if name != "write_report":
        raise AttributeError(f"module 'custard.report' has no attribute {name!r}")
    from custard.report.html_page import write_report

    return write_report
