"""The pieces of events: what they say as text."""

import pytest

from limpet.events import Wait


@pytest.mark.parametrize(
    ("wait", "text"),
    [
        (Wait(what="person", key="q-1"), "person:q-1"),
        (Wait(what="signal", key="paid"), "signal:paid"),
        (Wait(what="operator", key="paused"), "operator:paused"),
    ],
)
def test_a_wait_is_said_as_what_and_key(wait: Wait, text: str) -> None:
    """The form in which rows hold it, and in which a wake-up is matched."""
    assert str(wait) == text
