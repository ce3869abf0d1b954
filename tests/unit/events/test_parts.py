"""Parts of events: their text form."""

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
def test_a_wait_is_shown_as_what_and_key(wait: Wait, text: str) -> None:
    """Rows store this form, and wake-ups are matched by it."""
    assert str(wait) == text
