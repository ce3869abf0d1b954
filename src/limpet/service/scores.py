"""Scores of runs and steps: what people and services say about them, as lists, filters and datasets have it."""

import re
from datetime import datetime
from math import inf, isfinite, nextafter
from typing import Any

import msgspec
from msgspec.structs import replace

from limpet.clock import to_microseconds
from limpet.errors import InvalidArgument
from limpet.events import bodies as b
from limpet.journal import load, load_step
from limpet.redaction import hide_secrets
from limpet.service.page import MAX_PAGE_BYTES, Page, number_of
from limpet.service.steps import describe_failure, whole_value
from limpet.stores import RunRow, ScoreCondition, ScoreFilter, ScoreRow, Store
from limpet.times import to_datetime
from limpet.view import View

__all__ = [
    "ScoreInfo",
    "ScoreValue",
    "check_value",
    "newest_scores",
    "read_score",
    "score_condition",
    "score_page",
    "value_text",
]

ScoreValue = bool | int | float | str | None
FORM = re.compile(r"([^<>=]++)(<=|>=|=|<|>)(.*)", re.DOTALL)
# The largest integer that is exact as a 64-bit float, in which stores compare numbers.
MAX_EXACT = 2**53
# Number of scores in the report of a run.
SHOWN = 20


class ScoreInfo(View, frozen=True, kw_only=True):
    """How good a run or a step was, said by one person or service. Input and output are only in a dataset."""

    run: str
    """Run id."""
    agent: str
    """Name of the agent."""
    version: str
    """Version of the agent."""
    step: int | None
    """The step that it is about; null for the run."""
    name: str
    """Name of the score, such as `quality`."""
    value: bool | int | float | str | None
    """A number, true or false, or a category; null if there is only a comment."""
    comment: str
    """Comment of the person or service."""
    by: str
    """Who gave it; empty if it is unknown."""
    via: str
    """The interface, such as "python", "cli", "http" or "ui"."""
    time: datetime
    """When it was given."""
    seq: int
    """Number of its event."""
    tool: str = ""
    """Tool of the step."""
    input: Any = None
    """Input of the run, or arguments of the step. A value above 1 MB is `{"blob": …, "bytes": …}`."""
    output: Any = None
    """Output of the run, or result of the step; null if there is none."""
    error: str = ""
    """Why there is no output, if the run or the step failed."""

    def __str__(self) -> str:
        value = "" if self.value is None else f" {value_text(self.value)}"
        about = f" of step {self.step}" if self.step else ""
        comment = f": {self.comment}" if self.comment else ""
        return f"{self.name}{value}{about}{f' by {self.by}' if self.by else ''}{comment}"


def value_text(value: ScoreValue) -> str:
    """Return a value as people write it: `true`, `0.5`, or the category."""
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def check_value(value: object) -> ScoreValue:
    """Return the value of a score. Raises InvalidArgument for one that is neither number, true, false nor text."""
    if value is not None and not isinstance(value, bool | int | float | str):
        raise InvalidArgument(path="value", reason=f"is {type(value).__name__}; pass a number, true, false or a text")
    if isinstance(value, float) and not isfinite(value):
        raise InvalidArgument(path="value", reason=f"is {value}; pass a finite number")
    if isinstance(value, int) and abs(value) > MAX_EXACT:
        raise InvalidArgument(path="value", reason=f"must be at most {MAX_EXACT}, which a 64-bit float has exactly")
    if value == "":
        raise InvalidArgument(path="value", reason="is empty; leave it out")
    return value


def score_condition(given: str | None) -> ScoreCondition | None:
    """Return a condition on scores: `quality`, `quality<0.5`, `correct=false` or `verdict=bad`.

    True counts as 1 and false as 0. A category that looks like a number is written in quotes. Raises InvalidArgument.
    """
    if given is None:
        return None
    found = FORM.fullmatch(given)
    name = (given if found is None else found[1]).strip()
    if not name or (found is None and FORM.match(given)) or given[:1] in "<>=":
        raise _unclear(given)
    if found is None:
        return ScoreCondition(name)
    how, value = found[2], _value(found[3].strip())
    if isinstance(value, str):
        if how != "=" or not value:
            raise _unclear(given)
        return ScoreCondition(name, text=value)
    number = float(value)
    bounds = {
        "<": (-inf, nextafter(number, -inf)),
        "<=": (-inf, number),
        "=": (number, number),
        ">=": (number, inf),
        ">": (nextafter(number, inf), inf),
    }
    return ScoreCondition(name, *bounds[how])


def _unclear(given: str) -> InvalidArgument:
    reason = f"{given!r} is not a condition; write a name such as quality, or quality<0.5, correct=false, verdict=bad"
    return InvalidArgument(path="scored", reason=reason)


def _value(text: str) -> float | str:
    """Return a number, or the text that no number is written as."""
    try:
        found = msgspec.json.decode(text, type=bool | int | float | str)
    except (msgspec.MsgspecError, UnicodeError):
        return text
    if isinstance(found, int | float) and abs(found) > MAX_EXACT:
        raise InvalidArgument(path="scored", reason=f"{text} is larger than any score")
    return found


async def read_score(store: Store, row: RunRow, seq: int) -> ScoreInfo:
    """Return the score that an event of a run gave."""
    [event] = await store.read(row.id, after=seq - 1, limit=1)
    body = store.decode(event)
    assert isinstance(body, b.ScoreGiven), body
    return ScoreInfo(
        run=row.id,
        agent=row.agent,
        version=row.agent_version,
        step=body.number,
        name=body.score,
        value=hide_secrets(body.value) if isinstance(body.value, str) else body.value,
        comment=hide_secrets(body.comment),
        by=body.by,
        via=body.via,
        time=to_datetime(event.time),
        seq=seq,
    )


async def newest_scores(store: Store, row: RunRow) -> tuple[ScoreInfo, ...]:
    """Return the newest scores of a run and its steps, the newest first."""
    found = await store.scores(ScoreFilter(run=row.id), limit=SHOWN)
    return tuple([await read_score(store, row, each.seq) for each in found])


async def score_page(
    store: Store, where: ScoreFilter, last: int, cursor: str | None, *, agent: str | None, dataset: bool
) -> Page[ScoreInfo]:
    """Return a page of scores, the newest first, with input and output in a dataset."""
    runs: dict[str, RunRow] = {}
    page, size = Page[ScoreInfo](), 0
    before = _place_of(cursor)
    while rows := await store.scores(msgspec.structs.replace(where, before=before), limit=last + 1):
        for row in rows:
            if len(page) == last or size > MAX_PAGE_BYTES:
                page.next = _cursor_at(page[-1])
                return page
            before = (row.time, row.run, row.seq)
            if row.run not in runs:
                runs[row.run] = await store.get(row.run)
            if agent in (None, runs[row.run].agent):
                page.append(await _whole(store, runs[row.run], row, dataset=dataset))
                size += len(msgspec.json.encode(page[-1], enc_hook=str))
    return page


async def _whole(store: Store, run: RunRow, row: ScoreRow, *, dataset: bool) -> ScoreInfo:
    info = await read_score(store, run, row.seq)
    if not dataset:
        return info
    if info.step is None:
        state = await load(store, run.id)
        given, output, error, tool = state.input, state.output, state.error, ""
    else:
        step = await load_step(store, run.id, info.step)
        given, output, tool = step.args, step.result, step.tool
        error = step.error if step.result is None else None
    return replace(
        info,
        tool=tool,
        input=await whole_value(store, given),
        output=await whole_value(store, output),
        error="" if error is None else hide_secrets(describe_failure(error)),
    )


def _cursor_at(score: ScoreInfo) -> str:
    return f"{to_microseconds(score.time, 'time')}.{score.seq}.{score.run}"


def _place_of(cursor: str | None) -> tuple[int, str, int] | None:
    if cursor is None:
        return None
    time, _, rest = cursor.partition(".")
    seq, _, run = rest.partition(".")
    return number_of(time) or 0, run, number_of(seq) or 0
