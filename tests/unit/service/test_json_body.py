"""Typed answers: parsed as a whole, and never guessed."""

import pytest

from limpet.service.json_body import yes_or_no


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("y", (True, "")),
        ("Yes.", (True, "")),
        ("ok", (True, "")),
        ("approve", (True, "")),
        ("n", (False, "")),
        ("reject", (False, "")),
        ("no, because it is too dear", (False, "because it is too dear")),
        ("n too dear", (False, "too dear")),
        ("No: not this week!", (False, "not this week!")),
        ("", None),
        ("yes, but only half of it", None),
        ("no-one ordered this", None),
        ("nothing", None),
        ("of course", None),
    ],
)
def test_yes_or_no_is_parsed_with_its_reason(typed: str, meant: tuple[bool, str] | None) -> None:
    """A text that is neither yes nor no gives None, so that the question is repeated."""
    assert yes_or_no(typed) == meant
