"""Docstrings as Markdown: doctests become code blocks, and columns of parameters become lists."""

from __future__ import annotations

import re
from typing import Any

import griffe

PARAMETER = re.compile(r"^(\w[\w, ]*?) {2,}(\S.*)$")


class DocstringExamples(griffe.Extension):
    """Rewrites every docstring as it is loaded."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrite one object's docstring."""
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """Return a docstring with its doctests fenced and its parameter columns as lists.

    >>> print(as_markdown("Do it.\\n\\n>>> 1 + 1\\n2"))
    Do it.
    <BLANKLINE>
    ```python
    >>> 1 + 1
    2
    ```
    """
    return "\n\n".join(_block(block) for block in re.split(r"\n\s*\n", text))


def _block(block: str) -> str:
    lines = block.splitlines()
    for k, line in enumerate(lines):
        if line.lstrip().startswith(">>>"):
            before = "\n".join(lines[:k])
            fenced = "\n".join(["```python", *lines[k:], "```"])
            return f"{before}\n\n{fenced}" if before else fenced
    if len(lines) > 1 and all(PARAMETER.match(line) or line.startswith("   ") for line in lines):
        items = []
        for line in lines:
            match = PARAMETER.match(line)
            items.append(f"- `{match[1]}`: {match[2]}" if match else f"  {line.strip()}")
        return "\n".join(items)
    return block
