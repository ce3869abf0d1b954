"""Small plots of how the newest runs went, as shapes of an SVG: runs that ended, that failed, and waiting requests."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from limpet.web.ui.rendering import age

__all__ = ["WIDTH", "plots_of"]

# Size of a plot, in its own units.
WIDTH, HEIGHT = 240, 36


def plots_of(activity: Mapping[str, Any], now: datetime) -> list[dict[str, Any]]:
    """Return the plots of an activity; none before there are runs."""
    periods = activity["periods"]
    if not periods:
        return []
    ended = [each["completed"] + each["failed"] for each in periods]
    failed = [each["failed"] for each in periods]
    waits = [0.0 if each["waiting_since"] is None else _since(each["waiting_since"], now) for each in periods]
    period = _period(activity["period_seconds"])
    since = age(now - datetime.fromisoformat(periods[0]["start"]))
    share = activity["failed"] / activity["ended"] if activity["ended"] else 0
    plots = [
        _plot(f"{activity['ended']:,}", f"of the last {activity['runs']:,} runs ended", ended, "quiet", since),
        _plot(f"{share:.1%}".replace("%", " %"), f"of them failed ({activity['failed']:,})", failed, "bad", since),
    ]
    plots[0]["label"] = f"Runs ended per {period} since {since} ago, at most {max(ended)}"
    plots[1]["label"] = f"Failed runs per {period} since {since} ago, at most {max(failed)}"
    oldest, median = activity["oldest_request"], activity["median_request"]
    if oldest is None:
        waiting = _plot("None", "waits for a person", [], "wait", since)
        waiting["label"] = "No open request"
    else:
        waiting = _plot(_ago(oldest, now), f"oldest open request, median {_ago(median, now)}", waits, "wait", since)
        waiting["label"] = (
            f"Age of the oldest request that was opened in each {period} and is open, {_ago(oldest, now)} at most"
        )
    return [*plots, waiting]


def _plot(figure: str, caption: str, numbers: Sequence[float], colour: str, since: str) -> dict[str, Any]:
    most, size = max(numbers, default=0) or 1, WIDTH / max(len(numbers), 1)
    bars = [
        {"x": round(place * size, 2), "height": round(number / most * HEIGHT, 2), "width": round(size * 0.8, 2)}
        for place, number in enumerate(numbers)
        if number
    ]
    for bar in bars:
        bar["y"] = round(HEIGHT - bar["height"], 2)
    return {"figure": figure, "caption": caption, "bars": bars, "colour": colour, "since": since}


def _since(text: str, now: datetime) -> float:
    return max((now - datetime.fromisoformat(text)).total_seconds(), 1)


def _ago(text: str, now: datetime) -> str:
    return age(now - datetime.fromisoformat(text))


def _period(seconds: int) -> str:
    for size, word in ((86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second")):
        if seconds >= size:
            return word if seconds == size else f"{seconds // size} {word}s"
    return f"{seconds} seconds"
