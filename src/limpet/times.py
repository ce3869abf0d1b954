"""Times as datetimes and as text. Stored times are microseconds since 1970, UTC."""

from datetime import UTC, datetime, timedelta

__all__ = ["EPOCH", "format_time", "to_datetime", "to_datetime_or_none"]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def to_datetime(microseconds: int) -> datetime:
    """Return a time in microseconds since 1970 as a datetime in UTC."""
    return EPOCH + timedelta(microseconds=microseconds)


def to_datetime_or_none(microseconds: int | None) -> datetime | None:
    """Return a time as a datetime in UTC, or None for None."""
    return None if microseconds is None else to_datetime(microseconds)


def format_time(time: int | datetime) -> str:
    """Return a time, a datetime or in microseconds since 1970, as text for people."""
    return f"{to_datetime(time) if isinstance(time, int) else time:%Y-%m-%d %H:%M:%S} UTC"
