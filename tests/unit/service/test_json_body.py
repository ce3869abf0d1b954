"""What somebody types at a prompt: read as a whole, and never guessed at."""

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
def test_yes_or_no_is_the_first_word_and_a_reason_is_whole(typed: str, meant: tuple[bool, str] | None) -> None:
    """`approve` is no rejection because of "pprove"; a text that is neither is asked for again."""
    assert yes_or_no(typed) == meant
