"""Temporal's own users see attributes, memo and status of a run, and nothing that the run processes."""

import pytest
from google.protobuf.json_format import MessageToJson
from temporalio.client import WorkflowExecutionStatus as Status

import limpet
from tests.temporal.agents import SECRET, asker, failing, hearer
from tests.temporal.temporal_world import TemporalWorld


async def test_a_workflow_shows_its_run(world: TemporalWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIMPET_PUBLIC_URL", "https://runs.example.com/")
    async with world.app(linger=0) as app:
        handle = await app.start(asker, "Go on?", id="seen-1")
        await world.until_parked(app, "seen-1")
        client = await world.client()

        async def found(status: str) -> bool:
            query = f"LimpetAgent = 'asker' AND LimpetStatus = '{status}' AND WorkflowId = 'seen-1'"
            return [each.id async for each in client.list_workflows(query)] == ["seen-1"]

        await world.until(lambda: found("waiting"))
        shown = await client.get_workflow_handle("seen-1").describe()
        assert await shown.memo() == {
            "run": "seen-1",
            "agent": "asker",
            "version": "1",
            "link": "https://runs.example.com/ui/runs/seen-1",
        }
        assert await shown.static_summary() == "asker 1"
        assert await shown.static_details() == "https://runs.example.com/ui/runs/seen-1"
        await app.answer((await app.inbox())[0].id, True, by="ann")
        await handle.result(timeout="20s")
        await world.until(lambda: found("completed"))
        assert (await client.get_workflow_handle("seen-1").describe()).status is Status.COMPLETED


async def test_no_payload_is_in_a_history(world: TemporalWorld) -> None:
    """Neither input, question, answer, signal, result, nor error."""
    async with world.app(linger=0) as app:
        asked = await app.start(asker, f"{SECRET}?", id="secret-asked", goal=SECRET, labels={"team": SECRET})
        heard = await app.start(hearer, 1, id="secret-heard")
        failed = await app.start(failing, SECRET, id="secret-failed")
        for run in ("secret-asked", "secret-heard"):
            await world.until_parked(app, run)
        await app.answer((await app.inbox(run="secret-asked"))[0].id, True, by=SECRET)
        await app.signal("secret-heard", "word", SECRET)
        await asked.result(timeout="20s")
        assert await heard.result(timeout="20s") == [SECRET]
        with pytest.raises(limpet.RunFailed, match=SECRET):
            await failed.result(timeout="20s")
        for handle in (asked, heard, failed):
            for each in await world.until_closed(handle.id):
                raw = b"".join(event.SerializeToString() for event in each.events)
                assert SECRET.encode() not in raw
                assert SECRET not in "".join(MessageToJson(event) for event in each.events)
            shown = await (await world.client()).get_workflow_handle(handle.id).describe()
            assert SECRET.encode() not in shown.raw_description.SerializeToString()
