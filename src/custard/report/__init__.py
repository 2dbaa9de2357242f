"""The report: one HTML file that shows a run, offline. In reading order:

episodes    a tree's episodes step by step, with pictures
page_data   everything the page shows, as plain data
html_page   the page: template.html, tree.js and page.js with the data in it
curves      the learning curve as a figure
completion  what completes a run directory: evaluation, picture, report
"""

from __future__ import annotations

from typing import Any

__all__ = ["write_report"]


def __getattr__(name: str) -> Any:
    if name != "write_report":
        raise AttributeError(f"module 'custard.report' has no attribute {name!r}")
    from custard.report.html_page import write_report

    return write_report
