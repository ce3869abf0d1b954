"""The JSON of all interfaces is frozen; the tests name every change."""

from pathlib import Path

import msgspec
import pytest

import limpet
from limpet import testing
from limpet.service import json_views
from limpet.service.json_values import as_json

FROZEN = Path(__file__).parents[2] / "golden" / f"json-{json_views.VERSION}.txt"


def test_the_json_fields_are_frozen() -> None:
    """The failure names new, removed and changed fields."""
    known, now = FROZEN.read_text(encoding="utf-8").splitlines(), json_views.frozen()
    gone, new = sorted(set(known) - set(now)), sorted(set(now) - set(known))
    assert not gone, f"removed from the contract: {gone}; use a new VERSION, and keep the old views"
    assert not new, f"new in the contract: {new}; if intended, add it to {FROZEN.name}"
    assert known == now


def test_a_changed_json_view_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above can fail."""

    class Other(msgspec.Struct):
        """A different view."""

        id: int

    before = set(json_views.frozen())
    monkeypatch.setitem(json_views.VIEWS, "a worker", Other)
    assert set(json_views.frozen()) ^ before >= {"Other.id: integer", "WorkerInfo.id: text"}


async def test_real_results_match_their_json_views() -> None:
    """Real results have exactly the fields of their views, with values of the documented types."""

    @limpet.tool(effect="none", name="contract_look")
    async def look() -> int:
        return 7

    @limpet.agent(name="contract_agent", approvals=limpet.Approvals("x"))
    async def agent(run: limpet.Run, text: str) -> str:
        await run.patch(goal="g", plan=["a"], facts={"n": 1}, questions=["q"], flags=["f"])
        await run.decide("which?", choose="a", over=["a"], because="it is one")
        await run.step(look)
        await run.say("hello")
        return await run.ask("really?", answer=str)

    async with testing.app(agent) as app:
        await app.start(agent, "hi", id="r", conversation="c", session="s", user="u")
        await app.settle()
        given = {
            "a run, in lists": (await app.runs())[0],
            "a report of a run": await app.show("r"),
            "an event": (await app.log("r"))[0],
            "a request to a person": (await app.inbox())[0],
            "a state of a run": await app.state("r"),
            "a diff": await app.diff("r", step=1),
            "a comparison": await app.compare("r", "r"),
            "a replay": await app.replay("r"),
            "a row of a timeline": (await app.timeline("r"))[0],
            "a decision": (await app.decisions())[0],
            "a call of a tool": (await app.tool_calls())[0],
            "a context slice": await app.context("r"),
            "a message": (await app.messages("c"))[0],
            "a conversation": (await app.conversations())[0],
            "a session": (await app.sessions())[0],
            "an agent": (await app.agents())[0],
            "a worker": (await app.workers())[0],
            "counts": await app.stats(),
            "a verification": await app.verify("r"),
            "a deletion of runs": await app.prune(older_than="1d"),
        }
        for what, view in given.items():
            plain, form = as_json(view), json_views.VIEWS[what]
            assert set(plain) <= set(json_views.fields_of(form)), what
            required = set(json_views.fields_of(form)) if not issubclass(form, msgspec.Struct) else set()
            assert required <= set(plain), what
            for name, holds in json_views.fields_of(form).items():
                if name in plain:
                    assert _fits(plain[name], holds), (what, name, plain[name], holds)


def _fits(value: object, holds: str) -> bool:
    """Return whether a value has the documented type, as far as that can be checked."""
    kinds = {
        "text": str,
        "integer": int,
        "number": (int, float),
        "true or false": bool,
        "time": str,
        "null": type(None),
    }
    if holds == "anything" or " or " in holds.replace("true or false", ""):
        return True
    if holds.startswith(("list of", "[")):
        return isinstance(value, list)
    if holds.startswith("object of") or holds[0].isupper():
        return isinstance(value, dict)
    return isinstance(value, kinds[holds])  # type: ignore[arg-type]
