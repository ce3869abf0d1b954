"""Times that callers pass: a datetime, a duration, or a text that is either."""

import re
from datetime import datetime

import msgspec

from limpet.clock import Duration
from limpet.errors import InvalidArgument

__all__ = ["read_time"]

# The beginning of a time in ISO 8601; other text is a duration.
_DATE = re.compile(r"\d{4}-")


def read_time(given: datetime | Duration, path: str) -> datetime | Duration:
    """Return a time or a duration, where a text may be a time. Raises InvalidArgument."""
    if not isinstance(given, str) or not _DATE.match(given):
        return given
    try:
        return msgspec.convert(given, datetime)
    except msgspec.ValidationError:
        reason = f"{given!r} is not a time; pass one such as 2026-11-16T12:00:00Z"
        raise InvalidArgument(path=path, reason=reason) from None
