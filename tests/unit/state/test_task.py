"""A run can be shown as a row of an older task table, with the seven fields of such a row."""

from typing import Any

import msgspec
import pytest

from limpet.events import Failure, Payload, inline
from limpet.events import bodies as b
from limpet.state import RunState, TaskRecord, fold, task_record
from tests.unit.event_logs import BOOM, CLAIMED, CREATED, log

FIELDS = ["id", "user_input", "state", "result", "error", "created_at", "updated_at"]


def run(*bodies: Any, input: object = "help") -> RunState:
    """A run with this input, to which this happened, a second after the other from 2023-11-14 on."""
    created = msgspec.structs.replace(CREATED, input=input if isinstance(input, Payload) else inline(input))
    times = [1_700_000_000_000_000 + 1_000_001 * place for place in range(len(bodies) + 1)]
    return fold(log(created, *bodies, times=times))


def test_a_task_record_has_exactly_the_seven_fields() -> None:
    """In their order, and no other."""
    assert list(TaskRecord.__struct_fields__) == FIELDS


def test_a_finished_run_without_an_error_shows_its_result() -> None:
    """The error is left out."""
    record = task_record(run(CLAIMED, b.RunCompleted(output=inline("receipt"))))
    assert msgspec.to_builtins(record) == {
        "id": "run-1",
        "user_input": "help",
        "state": "completed",
        "result": "receipt",
        "created_at": "2023-11-14T22:13:20Z",
        "updated_at": "2023-11-14T22:13:22.000002Z",
    }


def test_a_failed_run_shows_its_error() -> None:
    """The result is left out."""
    record = task_record(run(CLAIMED, b.RunFailed(failure=BOOM)))
    assert msgspec.to_builtins(record) == {
        "id": "run-1",
        "user_input": "help",
        "state": "failed",
        "error": "boom",
        "created_at": "2023-11-14T22:13:20Z",
        "updated_at": "2023-11-14T22:13:22.000002Z",
    }


def test_a_run_under_way_has_neither_result_nor_error() -> None:
    """Both are left out."""
    assert list(msgspec.to_builtins(task_record(run()))) == ["id", "user_input", "state", "created_at", "updated_at"]


def test_an_error_without_a_message_is_named_by_its_type() -> None:
    """An error is never shown as none."""
    silent = b.RunFailed(failure=Failure(type="builtins.KeyError"))
    assert task_record(run(CLAIMED, silent)).error == "builtins.KeyError"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("help", "help"),
        ("", ""),
        ('{"a":1}', '{"a":1}'),
        ({"order": "é", "n": [1.5]}, '{"n":[1.5],"order":"é"}'),
        (None, "null"),
        (7, "7"),
        (Payload(blob="b-1", bytes=9), '{"blob":"b-1","bytes":9}'),
    ],
)
def test_what_is_not_text_is_shown_as_json(value: object, text: str) -> None:
    """Text is text; everything else is its JSON, or where it is stored."""
    assert task_record(run(input=value)).user_input == text
