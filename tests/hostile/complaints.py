"""What is wrong with how something hostile was refused."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from custard import CustardError

__all__ = ["complaints_noted"]

MAX_MESSAGE_LENGTH = 2500  # characters


@contextmanager
def complaints_noted(wrong: list[str], name: str, given: Any) -> Iterator[None]:
    """Add a complaint to `wrong` where `given` is refused otherwise than in one line of bearable length."""
    try:
        yield
    except CustardError as error:
        if "\n" in str(error) or len(str(error)) > MAX_MESSAGE_LENGTH:
            wrong.append(f"{name}: a long message: {str(error)[:200]!r}")
    except Exception as error:  # anything else is a traceback for the user
        wrong.append(f"{name}: {type(error).__name__}: {error}: {repr(given)[:500]}")
