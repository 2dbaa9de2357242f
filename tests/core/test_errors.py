"""Errors: an interrupt is known behind whatever compiled code made of it."""

from custard.core.errors import from_interrupt


def test_an_interrupt_is_known_through_what_wraps_it():
    wrapped = SystemError("returned a result with an exception set")
    wrapped.__cause__ = KeyboardInterrupt()
    assert from_interrupt(KeyboardInterrupt())
    assert from_interrupt(wrapped)
    assert not from_interrupt(SystemError("something else"))
