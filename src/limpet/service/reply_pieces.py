"""The text of model replies, in pieces, from the events of a run."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from limpet.engine.execution.views import EventView

__all__ = ["ReplyPieces"]


class ReplyPieces:
    """Finds the new text of model replies in the events of a run, which must be passed in order."""

    def __init__(self, shown: Mapping[int, int] | None = None) -> None:
        self.shown = dict(shown or {})
        """Number of characters that were shown, by the number of the step, for replies that are not complete."""

    async def piece_in(self, event: EventView, value: Callable[[Mapping[str, Any]], Awaitable[Any]]) -> str:
        """Return the new text in an event; `value` loads a payload."""
        number, body = event.body.get("number", 0), event.body
        if event.kind == "step.started" and body.get("kind") == "model":
            self.shown[number] = 0
        elif event.kind == "step.progressed" and body.get("partial") is not None:
            self.shown.setdefault(number, 0)  # a model called by a tool of the user, which reports partial results
        payload = body.get("partial" if event.kind == "step.progressed" else "output")
        if event.kind not in ("step.progressed", "step.completed") or number not in self.shown or payload is None:
            return ""
        found = await value(payload)
        text = found.get("text", "") if isinstance(found, dict) else found
        before = self.shown.pop(number) if event.kind == "step.completed" else self.shown[number]
        if not isinstance(text, str):
            return ""
        if event.kind == "step.progressed":
            self.shown[number] = max(len(text), before)
        return text[before:]
