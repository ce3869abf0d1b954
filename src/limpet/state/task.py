"""A run as a task record, with the seven fields of a common task table, computed from the run's state."""

from typing import Literal

import msgspec

from limpet.events import Payload
from limpet.events.parts import Part
from limpet.events.values import encode
from limpet.state.run import RunState
from limpet.times import to_datetime

__all__ = ["TaskRecord", "TaskState", "task_record"]


TaskState = Literal["pending", "running", "awaiting_user", "waiting", "completed", "failed", "cancelled"]
"""State of a task: the status of its run, and `awaiting_user` while the run waits for a person."""


class TaskRecord(Part, frozen=True, kw_only=True):
    """One row of a task table."""

    id: str
    """Run id."""
    user_input: str
    """Input of the run, as text."""
    state: TaskState
    """State of the task."""
    result: str = ""
    """Result, as text."""
    error: str = ""
    """Error, as text."""
    created_at: str
    """Time of creation, ISO 8601."""
    updated_at: str
    """Time of the last event, ISO 8601."""


def task_record(state: RunState) -> TaskRecord:
    """Return the task record of a run. Input and result that are not text become JSON."""
    return TaskRecord(
        id=state.run,
        user_input=_text(state.input),
        state="awaiting_user" if any(wait.what == "person" for wait in state.waits) else state.status,
        result=_text(state.output) if state.output is not None else "",
        error=state.error.message or state.error.type if state.error is not None else "",
        created_at=_time(state.created),
        updated_at=_time(state.updated),
    )


def _text(payload: Payload) -> str:
    if isinstance(payload.json, msgspec.UnsetType):
        return encode(payload).decode()
    value = payload.value()
    if value is None:
        return ""
    return value if isinstance(value, str) else bytes(payload.json).decode()


def _time(microseconds: int) -> str:
    return to_datetime(microseconds).isoformat().replace("+00:00", "Z")
