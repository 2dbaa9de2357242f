"""Write numbers for people."""

from __future__ import annotations

import math

__all__ = ["number_texts"]


def number_texts(*values: float | None) -> list[str]:
    """Return numbers that belong together as text: two decimals, more if all are small, exponents if one is huge.

    >>> number_texts(499.987, 0.4), number_texts(-0.00134, 0.0002), number_texts(1e300, None)
    (['499.99', '0.40'], ['-0.00134', '0.00020'], ['1e+300', '–'])
    """
    sizes = [abs(value) for value in values if value is not None and math.isfinite(value)]
    largest = max(sizes, default=0.0)
    decimals = 2 if largest == 0.0 or largest >= 0.1 else min(12, 2 - math.floor(math.log10(largest)))
    form = ".6g" if largest >= 1e9 else f".{decimals}f"
    return ["–" if value is None or math.isnan(value) else format(value, form) for value in values]
