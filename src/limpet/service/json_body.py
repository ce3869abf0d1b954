"""What somebody typed or sent, strictly, as text that means one thing only: JSON, or yes or no."""

import json
import re
from typing import Any

from limpet.errors import InvalidArgument
from limpet.events.values import parse

__all__ = ["LARGEST", "read_json", "yes_or_no"]

# In bytes; more is no input but a file, whose address is the input.
LARGEST = 16 * 1024 * 1024
YES = ("y", "yes", "true", "ok", "okay", "approve", "approved")
NO = ("n", "no", "false", "reject", "rejected")
# A word, and what is said after it.
_WORD = re.compile(r"([a-z]+)(?:[\s,.:;!]+(.*))?", re.IGNORECASE | re.DOTALL)


def read_json(text: str | bytes, what: str = "The input") -> Any:
    """A value from JSON text; refuses what is too large, no JSON, or has a key twice."""
    if len(text) > LARGEST:
        raise InvalidArgument(path=what, reason=f"it has more than {LARGEST // 1024**2} MiB: pass its address instead")
    value = parse(text)
    _refuse_twins(text, what)
    return value


def yes_or_no(text: str) -> tuple[bool, str] | None:
    """Return yes or no, and the reason after a no; None for a text that is neither, or a yes with reservations."""
    found = _WORD.fullmatch(text.strip())
    if found is None:
        return None
    word, more = found[1].lower(), (found[2] or "").strip()
    if word in YES and not more:
        return True, ""
    return (False, more) if word in NO else None


def _refuse_twins(text: str | bytes, what: str) -> None:
    """JSON leaves open which of two equal keys counts: whoever wrote both meant something else."""

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twin = next(name for name in names if names.count(name) > 1)
            raise InvalidArgument(path=what, reason=f"it has the key {twin!r} twice")
        return found

    json.loads(text, object_pairs_hook=members)
