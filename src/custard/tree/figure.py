"""The matplotlib figure that drawings return: one that notebooks show without any set-up."""

from __future__ import annotations

import io

from matplotlib.figure import Figure

__all__ = ["Picture"]


class Picture(Figure):
    """A matplotlib figure that shows itself in notebooks, whether or not pyplot is in use."""

    def _repr_svg_(self) -> str:
        data = io.StringIO()
        self.savefig(data, format="svg", facecolor="white")
        return data.getvalue()
