"""Task records: a run in the form of an older task table, with its seven fields."""

from typing import Any

import msgspec
import pytest

from limpet.events import Failure, Payload, inline
from limpet.events import bodies as b
from limpet.state import RunState, TaskRecord, fold, task_record
from tests.unit.event_logs import BOOM, CLAIMED, CREATED, log

FIELDS = ["id", "user_input", "state", "result", "error", "created_at", "updated_at"]


def run(*bodies: Any, input: object = "help") -> RunState:
    """Return a run with this input after these bodies, one second apart from 2023-11-14 on."""
    created = msgspec.structs.replace(CREATED, input=input if isinstance(input, Payload) else inline(input))
    times = [1_700_000_000_000_000 + 1_000_001 * place for place in range(len(bodies) + 1)]
    return fold(log(created, *bodies, times=times))


def test_a_task_record_has_exactly_the_seven_fields() -> None:
    assert list(TaskRecord.__struct_fields__) == FIELDS


def test_a_finished_run_without_an_error_shows_its_result() -> None:
    """The error is omitted."""
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
    """The result is omitted."""
    record = task_record(run(CLAIMED, b.RunFailed(failure=BOOM)))
    assert msgspec.to_builtins(record) == {
        "id": "run-1",
        "user_input": "help",
        "state": "failed",
        "error": "boom",
        "created_at": "2023-11-14T22:13:20Z",
        "updated_at": "2023-11-14T22:13:22.000002Z",
    }


def test_a_run_in_progress_has_neither_result_nor_error() -> None:
    """Both are omitted."""
    assert list(msgspec.to_builtins(task_record(run()))) == ["id", "user_input", "state", "created_at", "updated_at"]


def test_an_error_without_a_message_shows_its_type() -> None:
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
        (None, ""),
        (7, "7"),
        (Payload(blob="b-1", bytes=9), '{"blob":"b-1","bytes":9}'),
    ],
)
def test_values_that_are_not_text_are_shown_as_json(value: object, text: str) -> None:
    """Text is shown verbatim; other values as JSON, or as their place of storage."""
    assert task_record(run(input=value)).user_input == text
