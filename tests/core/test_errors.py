"""Errors: an interrupt is known behind whatever compiled code made of it."""

import pytest

from custard.core.errors import MAX_MESSAGE_CHARACTERS, CustardError, from_interrupt, require_whole


def test_an_interrupt_is_known_through_what_wraps_it():
    wrapped = SystemError("returned a result with an exception set")
    wrapped.__cause__ = KeyboardInterrupt()
    assert from_interrupt(KeyboardInterrupt())
    assert from_interrupt(wrapped)
    assert not from_interrupt(SystemError("something else"))


def test_a_message_is_at_most_a_screenful_and_keeps_both_ends():
    said = str(CustardError("unknown method " + 10**6 * "x" + ": choose one of tpi, mfec"))
    assert len(said) <= MAX_MESSAGE_CHARACTERS + 30
    assert said.startswith("unknown method xxx")
    assert said.endswith("choose one of tpi, mfec")
    assert "characters left out" in said


def test_numbers_have_an_upper_limit_where_one_is_given():
    require_whole(0, 10, episodes=10)
    with pytest.raises(CustardError, match="episodes=11 must be at most 10"):
        require_whole(0, 10, episodes=11)
