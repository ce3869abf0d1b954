"""Strict parsing of text that a person typed or a client sent: JSON, or yes or no."""

import json
import re
from typing import Any

from limpet.errors import InvalidArgument
from limpet.events.values import parse

__all__ = ["LARGEST", "read_json", "yes_or_no"]

# In bytes. Larger data should be passed by reference, as a URL or path.
LARGEST = 16 * 1024 * 1024
YES = ("y", "yes", "true", "ok", "okay", "approve", "approved")
NO = ("n", "no", "false", "reject", "rejected")
# A word, and an optional reason after it.
_WORD = re.compile(r"([a-z]+)(?:[\s,.:;!]+(.*))?", re.IGNORECASE | re.DOTALL)


def read_json(text: str | bytes, what: str = "input") -> Any:
    """Parse JSON. Raises InvalidArgument if it is too large, is not JSON, or has a duplicate key."""
    if len(text) > LARGEST:
        raise InvalidArgument(path=what, reason=f"larger than {LARGEST // 1024**2} MiB; pass a URL or path instead")
    value = parse(text)
    _refuse_duplicate_keys(text, what)
    return value


def yes_or_no(text: str) -> tuple[bool, str] | None:
    """Parse yes or no, and the reason after a no. Returns None for any other text, including a yes with a condition."""
    found = _WORD.fullmatch(text.strip())
    if found is None:
        return None
    word, more = found[1].lower(), (found[2] or "").strip()
    if word in YES and not more:
        return True, ""
    return (False, more) if word in NO else None


def _refuse_duplicate_keys(text: str | bytes, what: str) -> None:
    """Raise InvalidArgument for a duplicate key: JSON does not define which of the two is used."""

    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            duplicate = next(name for name in names if names.count(name) > 1)
            raise InvalidArgument(path=what, reason=f"duplicate key {duplicate!r}")
        return found

    json.loads(text, object_pairs_hook=members)
