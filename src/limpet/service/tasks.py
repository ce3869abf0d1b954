"""Runs as task records, with the seven fields of a common task table."""

from collections.abc import Sequence
from typing import Any, get_args

from msgspec.structs import replace

from limpet.errors import InvalidArgument
from limpet.events import Payload, inline
from limpet.journal import load
from limpet.service.views import load_payloads
from limpet.state import TaskRecord, TaskState, task_record
from limpet.stores import RunFilter, Store

__all__ = ["filter_of", "read_task"]


async def read_task(store: Store, run: str) -> TaskRecord:
    """Return a run as a task record. Large inputs and results are shown by their size."""
    state = await load(store, run)
    loaded = await load_payloads(store, [state.input, state.output])
    found, output = map(_shown, loaded)
    return task_record(replace(state, input=found or inline(None), output=output))


def _shown(payload: Payload | None) -> Payload | None:
    if payload is None or payload.is_inline:
        return payload
    return inline({"bytes": payload.bytes})


def filter_of(state: str | None, **more: Any) -> RunFilter:
    """Return the filter of runs whose task record has this state; None for all."""
    if state is None:
        return RunFilter(**more)
    if state not in get_args(TaskState):
        reason = f"unknown state {state!r}; use {', '.join(get_args(TaskState))}"
        raise InvalidArgument(path="state", reason=reason)
    statuses: Sequence[str] = ("waiting",) if state == "awaiting_user" else (state,)
    return RunFilter(status=tuple(statuses), waits="person" if state == "awaiting_user" else None, **more)
