"""Numbers as text for people."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping

__all__ = ["format_numbers", "html_table", "passed_time"]


def format_numbers(*values: float | None) -> list[str]:
    """Return numbers that belong together as text: two decimals, more where all are small, 1e+300 where one is large.

    >>> format_numbers(499.987, 0.4), format_numbers(-0.00134, 0.0002), format_numbers(1e300, None)
    (['499.99', '0.40'], ['-0.00134', '0.00020'], ['1e+300', '–'])
    """
    sizes = [abs(value) for value in values if value is not None and math.isfinite(value)]
    largest = max(sizes, default=0.0)
    decimals = 2 if largest == 0.0 or largest >= 0.1 else min(12, 2 - math.floor(math.log10(largest)))
    form = ".6g" if largest >= 1e9 else f".{decimals}f"
    return ["–" if value is None or math.isnan(value) else format(value, form) for value in values]


def passed_time(seconds: float, decimals: int = 1) -> str:
    """Return the time that something took or has taken so far.

    >>> passed_time(2.04), passed_time(9.6, 0), passed_time(200), passed_time(4000)
    ('2.0 s', '10 s', '3 min 20 s', '1 h 7 min')
    """
    if seconds < 60:
        return f"{seconds:.{decimals}f} s"
    if seconds < 3600:
        return f"{int(seconds) // 60} min {int(seconds) % 60} s"
    return f"{round(seconds / 60) // 60} h {round(seconds / 60) % 60} min"


def html_table(rows: Mapping[str, object]) -> str:
    """Return names and values as a small table for notebooks.

    >>> html_table({"mean": "1 < 2"})
    '<table><tr><th style="text-align:left">mean</th><td style="text-align:left">1 &lt; 2</td></tr></table>'
    """
    left = 'style="text-align:left"'
    cells = (
        f"<tr><th {left}>{html.escape(str(k))}</th><td {left}>{html.escape(str(v))}</td></tr>" for k, v in rows.items()
    )
    return f"<table>{''.join(cells)}</table>"
