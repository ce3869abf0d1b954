"""Descriptions of events for the demo. Most events have none."""

import json
from collections.abc import Mapping
from typing import Any

import limpet

__all__ = ["args_of", "words"]


def words(event: limpet.EventView, steps: int) -> tuple[str, str, int]:
    """Return the text, style and indent for an event; empty text for most."""
    body = event.body
    match event.kind:
        case "run.claimed":
            died = "; the previous worker is dead" if body.get("died") else ""
            return f"worker {_short(body['worker'])} claimed the run{died}", "dim", 0
        case "step.started":
            begins = f"step {body['number']} of {steps}  {_item(body['name'])}" if body["attempt"] == 1 else ""
            return begins, "", 0
        case "step.failed":
            return _failed(body), "yellow", 13
        case "step.unknown":
            return f"unknown ({body['reason']}): the reply never arrived", "yellow", 13
        case "step.resolved":
            return f"verified: {body['outcome'].replace('_', ' ')}, {_value(body.get('output'))}", "green", 13
        case _:
            return _of_people(event)


def _of_people(event: limpet.EventView) -> tuple[str, str, int]:
    body = event.body
    match event.kind:
        case "decision.made":
            return f"decided: {body['question']} {_value(body['chosen'])}, because {body['because']}", "cyan", 0
        case "request.answered":
            because = f": {body['because']}" if body.get("because") else ""
            return f"{body['decision']} by {body['by']}{because}", "green", 0
        case "run.completed":
            return f"completed: {_value(body['output'])}", "green", 0
        case _:
            return "", "", 0


def args_of(args: Mapping[str, Any]) -> str:
    """Return arguments as they would be written in code."""
    return ", ".join(f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in args.items())


def _failed(body: Mapping[str, Any]) -> str:
    then = "giving up" if body.get("retry_at") is None else "retrying"
    return f"attempt {body['attempt']}: {body['failure']['message']}; {then}"


def _value(payload: Mapping[str, Any] | None) -> str:
    return json.dumps((payload or {}).get("json"), ensure_ascii=False)


def _item(name: str) -> str:
    """Return the plan item: the scope that the step is in."""
    return name.partition("/")[0]


def _short(worker: str) -> str:
    return f"…{worker[-4:]}"
