"""Templates of the dashboard, and what they need: words, classes and icons of statuses, ages, and pieces of addresses.

Values are data: every text is escaped, and no template marks one as safe.
"""

import json
import re
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined

__all__ = ["SHORT", "age", "pretty", "render"]

# Class (and so the colour) and icon of each status of a run or step.
STATUSES: Mapping[str, tuple[str, str]] = {
    "running": ("run", "run"),
    "started": ("run", "run"),
    "waiting": ("wait", "wait"),
    "retrying": ("wait", "wait"),
    "pending": ("", "pending"),
    "completed": ("ok", "done"),
    "failed": ("bad", "failed"),
    "refused": ("bad", "failed"),
    "unknown": ("unknown", "unknown"),
    "quarantined": ("unknown", "quarantine"),
    "diverged": ("unknown", "quarantine"),
    "paused": ("wait", "wait"),
    "escalated": ("wait", "person"),
    "interrupted": ("unknown", "unknown"),
    "undone": ("", "cancelled"),
    "cancelled": ("", "cancelled"),
    "skipped": ("", "cancelled"),
}
SHORT = 300
"""Characters of a value in a table."""
# Characters that change the direction of text.
_DIRECTIONS = re.compile("[\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
UNITS = ((86400, "d"), (3600, "h"), (60, "m"))


def age(between: timedelta) -> str:
    """Return a time span as people say it: 6 ms, 0.4 s, 38 m, 5 h, 3 d."""
    seconds = between.total_seconds()
    for size, unit in UNITS:
        if seconds >= size:
            return f"{int(seconds // size)} {unit}"
    if seconds >= 10:
        return f"{int(seconds)} s"
    return f"{seconds:.1f} s" if seconds >= 0.1 else f"{max(int(seconds * 1000), 0)} ms"


def _time(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def _ago(text: str, now: datetime) -> str:
    return age(now - datetime.fromisoformat(text))


def _lasted(start: str, end: str | None, now: datetime) -> str:
    return age((_time(end) or now) - datetime.fromisoformat(start))


def _absolute(text: str) -> str:
    return f"{datetime.fromisoformat(text):%-d %b %Y, %H:%M:%S} UTC"


def pretty(value: Any) -> str:
    """Return a value as JSON for people. Characters that change the direction of text are escaped: they could make a
    value look like another one.
    """
    return _DIRECTIONS.sub(lambda found: f"\\u{ord(found[0]):04x}", json.dumps(value, indent=2, ensure_ascii=False))


def _unquoted(text: str) -> str:
    """Return an option as people say it: a text without its quotes."""
    try:
        found = json.loads(text)
    except ValueError:
        return text  # it was shortened
    return found if isinstance(found, str) else text


def _until(text: str, now: datetime) -> str:
    """Return how long it is until a time."""
    return age(max(datetime.fromisoformat(text) - now, timedelta()))


def _used_of(end: str, start: str, now: datetime) -> int:
    """Return how many percent of the time from start to end are over, at most 100."""
    whole = (datetime.fromisoformat(end) - datetime.fromisoformat(start)).total_seconds()
    used = (now - datetime.fromisoformat(start)).total_seconds()
    return 100 if whole <= 0 else min(max(int(used / whole * 100), 0), 100)


def _duration(seconds: float | None) -> str:
    return "–" if seconds is None else age(timedelta(seconds=seconds))


def _size(number: int) -> str:
    """Return a number of bytes as people say it."""
    for unit, size in (("MB", 1_000_000), ("kB", 1_000)):
        if number >= size:
            return f"{number / size:.1f} {unit}"
    return f"{number} bytes"


def _cost(number: float) -> str:
    """Return a cost with four digits; nothing for none."""
    return f"{number:.4g}" if number else ""


def _lines(text: str) -> int:
    return text.count("\n") + 1


def _short(text: str) -> str:
    return text if len(text) <= SHORT else f"{text[:SHORT]}…"


def _identifier(name: str) -> str:
    """Return a name for Python."""
    found = re.sub(r"\W", "_", name)
    return f"_{found}" if found[:1].isdigit() else found


def _by_key(facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {fact["key"]: fact["value"] for fact in facts}


def _status_class(status: str) -> str:
    return STATUSES.get(status, ("", "unknown"))[0]


def _status_icon(status: str) -> str:
    return STATUSES.get(status, ("", "unknown"))[1]


def _link(path: str, **parameters: Any) -> str:
    """Return an address with a query, without parameters that are not set."""
    given = {name: value for name, value in parameters.items() if value not in (None, "", [], False)}
    return f"{path}?{urlencode(given, doseq=True)}" if given else path


_environment = Environment(
    loader=PackageLoader("limpet.web.ui"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_environment.filters |= {
    "ago": _ago,
    "absolute": _absolute,
    "pretty": pretty,
    "unquoted": _unquoted,
    "until": _until,
    "used_of": _used_of,
    "duration": _duration,
    "size": _size,
    "cost": _cost,
    "lines": _lines,
    "short": _short,
    "identifier": _identifier,
    "by_key": _by_key,
    "status_class": _status_class,
    "status_icon": _status_icon,
}
_environment.globals |= {"lasted": _lasted, "link": _link}


def render(template: str, /, **context: Any) -> str:
    """Return a page."""
    return _environment.get_template(template).render(**context)
