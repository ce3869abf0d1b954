"""Texts that only some databases accept are treated alike on all: refused, or read back unchanged."""

from pathlib import Path
from typing import Any

import pytest

import limpet

ODD = ["", "a\0b", "\ud800", "x" * 70_000, "\U0001f600", "'; --", None, 5, ["a"], {1: 2}]


@limpet.agent(name="stores_waiting")
async def waiting(run: limpet.Run, text: Any) -> Any:
    await run.patch(goal="wait")
    return await run.receive("go", str)


@pytest.mark.parametrize("where", ["sqlite", "postgres"])
async def test_odd_texts_in_commands_are_refused_or_read_back(where: str, tmp_path: Path, postgres_schema: str) -> None:
    """Rows have some of the texts outside of the log; reading them must not fail later."""
    url = f"sqlite:///{tmp_path}/x.db" if where == "sqlite" else postgres_schema
    taken = 0
    async with limpet.open(url, agents=[waiting], worker=False) as app:
        for odd in ODD:
            given: Any = odd
            calls: list[Any] = [
                app.start(waiting, "x", session=given, user="u"),
                app.start(waiting, "x", user=given),
                app.start(waiting, "x", labels={"a": given}),
                app.start(waiting, "x", labels={given: "a"} if isinstance(given, str) else given),
                app.start(waiting, given),
                app.start(waiting, "x", id=given),
                app.start(waiting, "x", conversation=given),
                app.say("talk", given),
            ]
            for call in calls:
                taken += await settled(call)
        run = await app.start(waiting, "x", id="told")
        for odd in ODD:
            wrong: Any = odd
            taken += await settled(app.signal(run.id, wrong, "x"))
            taken += await settled(app.signal(run.id, "go", wrong))
            taken += await settled(app.cancel(run.id, reason=wrong))
            for question in (app.runs(session=wrong), app.inbox(to=wrong), app.conversations(session=wrong)):
                await settled(question)
        for row in (await app.store.runs(limit=1000)).rows:
            await app.log(row.id)
            await app.state(row.id)
        await app.verify()
    assert taken


async def settled(call: Any) -> bool:
    """Return whether a call was accepted. Raises any error that is not a LimpetError."""
    try:
        await call
    except limpet.LimpetError:
        return False
    return True
