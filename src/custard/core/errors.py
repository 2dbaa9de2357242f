"""The one exception for mistakes a user can mend: it says what was given, what is accepted and how to fix it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from numbers import Integral, Real

__all__ = [
    "MAX_MESSAGE_CHARACTERS", "CustardError", "from_interrupt", "one_line", "one_of", "require_least", "require_shares",
    "require_whole", "shortened",
]  # fmt: skip

MAX_MESSAGE_CHARACTERS = 1900  # about a screenful, 24 lines of 80 characters


class CustardError(ValueError):
    """A mistake in what was given to custard. The command line prints its one line and exits with code 2."""

    def __init__(self, message: object = "") -> None:
        super().__init__(shortened(str(message)))


def shortened(text: str, max_characters: int = MAX_MESSAGE_CHARACTERS) -> str:
    """Return a text with its middle left out where it is longer than a screenful: a message may repeat its input.

    >>> shortened("unknown method " + 1000 * "m" + ": choose one of tpi, mfec", max_characters=60)
    'unknown method mmmmm… (1,010 characters left out) … tpi, mfec'
    """
    if len(text) <= max_characters:
        return text
    kept = max(2, max_characters - 30)
    ends = text[: kept - kept // 3], text[len(text) - kept // 3 :]
    return f"{ends[0]}… ({len(text) - kept:,} characters left out) …{ends[1]}"


def from_interrupt(error: BaseException | None) -> bool:
    """Return whether Ctrl-C was behind an error: compiled code on its way into Python turns it into a SystemError."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def one_line(error: object) -> str:
    """Return somebody else's message, which may have several lines, as one line.

    >>> one_line("a\\n  b")
    'a b'
    """
    return " ".join(str(error).split())


def require_whole(minimum: int, maximum: int | None = None, **given: object) -> None:
    """Raise unless every value that is given (not None) is a whole number of at least `minimum` and at most `maximum`.

    >>> require_whole(1, episodes=0)
    Traceback (most recent call last):
    custard.core.errors.CustardError: episodes=0 must be a whole number of at least 1
    """
    for name, value in given.items():
        if value is not None and (not isinstance(value, Integral) or isinstance(value, bool) or int(value) < minimum):
            raise CustardError(f"{name}={value!r} must be a whole number of at least {minimum}")
        if value is not None and maximum is not None and int(value) > maximum:  # type: ignore[call-overload]
            raise CustardError(f"{name}={value!r} must be at most {maximum:,}")


def require_positive(**given: object) -> None:
    """Raise unless every value that is given (not None) is a number above zero.

    >>> require_positive(step_timeout=-1)
    Traceback (most recent call last):
    custard.core.errors.CustardError: step_timeout=-1 must be a number above 0
    """
    for name, value in given.items():
        if value is not None and (not isinstance(value, Real) or isinstance(value, bool) or not float(value) > 0):
            raise CustardError(f"{name}={value!r} must be a number above 0")


def require_least(settings: object, minimum: float, *names: str) -> None:
    """Raise unless each of these settings is None or at least `minimum`."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not value >= minimum:
            raise CustardError(f"{name}={value} must be at least {minimum}")


def require_shares(settings: object, *names: str) -> None:
    """Raise unless each of these settings is None or lies between 0 and 1."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and not 0.0 <= value <= 1.0:
            raise CustardError(f"{name}={value} must be between 0 and 1")


def one_of(what: str, given: object, accepted: Iterable[str]) -> str:
    """Return the sentence for a name that is not among the accepted ones, with the nearest one suggested.

    >>> one_of("method", "mfecc", ["mfec", "dqn"])
    "unknown method 'mfecc': choose one of mfec, dqn (did you mean 'mfec'?)"
    """
    names = list(accepted)
    near = difflib.get_close_matches(str(given), names, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    return f"unknown {what} {given!r}: choose one of {', '.join(names)}{hint}"
