"""Prompts are rebuilt exactly: after crashes, in forks, in other stores and under encryption."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet import testing
from limpet.llm.model import Prompt
from limpet.llm.prompt import SUMMARY, digest_of
from limpet.testing import ScriptedModel, calls

LONG = "It is a long story, and all of it matters. " * 30
KINDS = ("step.started", "step.completed", "message.said", "state.patched", "value.recorded", "turn.started")


def scripted_reply(request: Prompt) -> Any:
    """Choose a reply by the last message: note a fact and use a tool, ask a person, answer, or summarise."""
    last = request.messages[-1]
    if request.messages[0].text == SUMMARY:
        return "They talked at length."
    if last.role == "user":
        return (LONG, calls("note_fact", key="told", value=last.text[:40]), calls("inputs_look", place="here"))
    return "well, then" if last.text == "yes" else calls("ask_person", question="well?")


def talking_agent(model: ScriptedModel) -> limpet.Agent[str, str]:
    """Return an agent with a small window that notes facts, uses a tool and asks a person."""

    @limpet.tool(effect="none", name="inputs_look")
    async def look(place: str) -> str:
        """Look around."""
        return f"{place}: {LONG}"

    return limpet.llm_agent("inputs_talker", model=model, instructions="Talk.", tools=[look], window=8_000)


async def steps_of(app: limpet.App, run: str) -> list[int]:
    """Return the numbers of a run's model steps; of a fork, only its own."""
    log = await app.log(run)
    cut = max((each.seq for each in log if each.kind == "run.forked"), default=0)
    started = [each.body for each in log if each.kind == "step.started" and each.seq > cut]
    return sorted({body["number"] for body in started if body.get("kind") == "model"})


async def rebuilt_prompts(app: limpet.App, run: str, steps: Sequence[int] | None = None) -> list[str]:
    """Rebuild the prompts of a run's model steps, check that they are exact, and return their digests."""
    numbers = await steps_of(app, run) if steps is None else steps
    found = [await app.prompt(run, step=number) for number in numbers]
    assert [each.step for each in found if not each.is_exact] == []
    return [digest_of(each.prompt) for each in found]


def sent_prompts(*models: ScriptedModel) -> list[str]:
    """Return the distinct digests of all prompts sent. An unrecorded call is repeated with the same prompt."""
    return list(dict.fromkeys(digest_of(each) for model in models for each in model.prompts))


async def answer(app: limpet.App) -> None:
    """Answer the one open request."""
    [request] = await app.inbox()
    await app.answer(request, "yes", by="ann")


@pytest.mark.parametrize("kind", KINDS)
async def test_prompts_are_exact_after_a_crash_at_any_commit(kind: str) -> None:
    for when in ("before", "after"):
        for nth in (1, 2, 3, 5):
            model = ScriptedModel(scripted_reply)
            agent = talking_agent(model)
            async with testing.app(agent) as app:
                handle = await app.start(agent, LONG, id="r", conversation="c")
                app.crash_at(when, kind, nth=nth)
                await app.settle()
                await answer(app)
                assert await handle.result() == "well, then"
                assert await rebuilt_prompts(app, "r") == sent_prompts(model)
                assert len(model.prompts) <= 3 + app.crashes


async def test_prompts_are_exact_in_a_fork_at_any_step() -> None:
    """A fork shares the prompts before the fork point and has its own after it."""
    model = ScriptedModel(scripted_reply)
    agent = talking_agent(model)
    async with testing.app(agent) as app:
        handle = await app.start(agent, LONG, id="r", conversation="c")
        await app.settle()
        await answer(app)
        await handle.result()
        before = await rebuilt_prompts(app, "r")
        for at in await steps_of(app, "r"):
            for patch in ({}, {"facts": {"told": "otherwise"}}):
                model.prompts.clear()
                fork = await app.fork("r", at=at, patch=patch, id=f"f{at}-{len(patch)}")
                await app.settle()
                for request in await app.inbox():
                    await app.answer(request, "yes", by="ann")
                assert await fork.result() == "well, then"
                shared = [step for step in await steps_of(app, "r") if step < at]
                own = await steps_of(app, fork.id)
                both = {step: digest for step, digest in zip(shared, before, strict=False) if step not in own}
                assert await rebuilt_prompts(app, fork.id, [*both]) == [*both.values()]
                found = await rebuilt_prompts(app, fork.id)
                assert found == sent_prompts(model)
                assert not shared or (found == before[len(shared) :]) == (not patch)
        assert await rebuilt_prompts(app, "r") == before


class Places:
    """Stores of several kinds, encrypted or not."""

    def __init__(self, folder: Path, postgres: str, patch: pytest.MonkeyPatch) -> None:
        self._folder, self._postgres, self._patch = folder, postgres, patch
        self._master = os.urandom(32).hex()

    def open(self, kind: str, agent: limpet.Agent[str, str]) -> limpet.App:
        """Open an app on `sqlite` or `postgres`, with the suffix `-encrypted` if wanted."""
        name, _, encrypted = kind.partition("-")
        if encrypted:
            self._patch.setenv("LIMPET_KEYS", self._master)
        else:
            self._patch.delenv("LIMPET_KEYS", raising=False)
        url = f"sqlite:///{self._folder / kind}.db" if name == "sqlite" else self._postgres
        return limpet.open(url, agents=[agent])


@pytest.fixture
def places(tmp_path: Path, postgres_schema: str, monkeypatch: pytest.MonkeyPatch) -> Places:
    """The stores of a test."""
    return Places(tmp_path, postgres_schema, monkeypatch)


async def until_asked(app: limpet.App, run: str) -> None:
    """Wait until the run opens a request."""
    handle = await app.get(run)
    async for event in handle.events():
        if event.kind == "request.opened":
            return


@pytest.mark.parametrize("kind", ["sqlite-encrypted", "postgres", "postgres-encrypted"])
async def test_prompts_are_exact_on_every_store(places: Places, kind: str, full: bool) -> None:
    """Five runs with summaries, each left in the middle of a turn and continued by another process.

    Without --full, three runs.
    """
    count = 5 if full else 3
    models: list[ScriptedModel] = []
    for number in range(count):
        first, second = ScriptedModel(scripted_reply), ScriptedModel(scripted_reply)
        models += [first, second]
        async with places.open(kind, talking_agent(first)) as app:
            await app.start(talking_agent(first), f"{number}: {LONG}", id=f"r{number}", conversation="c")
            await until_asked(app, f"r{number}")
        async with places.open(kind, talking_agent(second)) as app:
            assert app.store.codec.is_private == kind.endswith("encrypted")
            await answer(app)
            assert await (await app.get(f"r{number}")).result(timeout="30s") == "well, then"
    async with places.open(kind, talking_agent(ScriptedModel())) as app:
        found = [digest for number in range(count) for digest in await rebuilt_prompts(app, f"r{number}")]
        assert found == sent_prompts(*models)
        assert any(each.messages[0].text == SUMMARY for model in models for each in model.prompts)
        assert (await app.replay(f"r{count - 1}")).value == "well, then"


MOVES = [("sqlite", "postgres"), ("sqlite-encrypted", "postgres"), ("sqlite", "postgres-encrypted")]


@pytest.mark.parametrize(("here", "there"), MOVES)
async def test_prompts_are_exact_after_a_move_to_another_store(
    places: Places, tmp_path: Path, here: str, there: str
) -> None:
    """A run is moved in the middle of a turn, with its conversation, and continues there."""
    first, second = ScriptedModel(scripted_reply), ScriptedModel(scripted_reply)
    async with places.open(here, talking_agent(first)) as app:
        await app.start(talking_agent(first), LONG, id="r", conversation="c")
        await until_asked(app, "r")
        before = await rebuilt_prompts(app, "r")
        await app.export("r", tmp_path / "r.zip")
    async with places.open(there, talking_agent(second)) as app:
        handle = await app.load(tmp_path / "r.zip")
        assert await rebuilt_prompts(app, "r") == before == sent_prompts(first)
        await answer(app)
        await app.resume("r")
        assert await handle.result(timeout="30s") == "well, then"
        assert await rebuilt_prompts(app, "r") == sent_prompts(first, second)
        assert (await app.replay("r")).value == "well, then"


@pytest.mark.parametrize("there", ["postgres", "postgres-encrypted"])
async def test_prompts_of_a_fork_are_exact_after_a_move(places: Places, tmp_path: Path, there: str) -> None:
    """The bundle contains the shared prefix of the run and of its conversation."""
    model = ScriptedModel(scripted_reply)
    agent = talking_agent(model)
    async with places.open("sqlite", agent) as app:
        handle = await app.start(agent, LONG, id="r", conversation="c")
        await until_asked(app, "r")
        await answer(app)
        await handle.result(timeout="30s")
        model.prompts.clear()
        *_, last = await steps_of(app, "r")
        fork = await app.fork("r", at=last, id="f", patch={"facts": {"told": "otherwise"}})
        assert await fork.result(timeout="30s") == "well, then"
        assert await rebuilt_prompts(app, "f") == sent_prompts(model)
        await app.export("f", tmp_path / "f.zip")
    async with places.open(there, agent) as app:
        await app.load(tmp_path / "f.zip")
        assert await rebuilt_prompts(app, "f") == sent_prompts(model)
        assert len(await rebuilt_prompts(app, "r")) == 3
