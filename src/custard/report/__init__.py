"""The report: one HTML file that shows a run, offline."""

from __future__ import annotations

from typing import Any

__all__ = ["write_report"]


def __getattr__(name: str) -> Any:
    if name != "write_report":
        raise AttributeError(f"module 'custard.report' has no attribute {name!r}")
    from custard.report.html_page import write_report

    return write_report
