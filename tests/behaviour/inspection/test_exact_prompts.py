"""What a model was asked is made again exactly: after crashes, in forks, in other stores, under encryption."""

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


def says(request: Prompt) -> Any:
    """By what was said last: it notes something, looks, asks a person, answers; and it summarises."""
    last = request.messages[-1]
    if request.messages[0].text == SUMMARY:
        return "They talked at length."
    if last.role == "user":
        return (LONG, calls("note_fact", key="told", value=last.text[:40]), calls("inputs_look", place="here"))
    return "well, then" if last.text == "yes" else calls("ask_person", question="well?")


def talker(model: ScriptedModel) -> limpet.Agent[str, str]:
    """An agent with a small window, which notes, looks and asks."""

    @limpet.tool(effect="none", name="inputs_look")
    async def look(place: str) -> str:
        """Look around."""
        return f"{place}: {LONG}"

    return limpet.llm_agent("inputs_talker", model=model, instructions="Talk.", tools=[look], window=8_000)


async def steps_of(app: limpet.App, run: str) -> list[int]:
    """The numbers of the steps that asked a model; of a fork, of its own."""
    log = await app.log(run)
    cut = max((each.seq for each in log if each.kind == "run.forked"), default=0)
    started = [each.body for each in log if each.kind == "step.started" and each.seq > cut]
    return sorted({body["number"] for body in started if body.get("kind") == "model"})


async def inputs(app: limpet.App, run: str, steps: Sequence[int] | None = None) -> list[str]:
    """Digests of what a model was asked, at all steps of a run's own or at some, made again; all of it exact."""
    numbers = await steps_of(app, run) if steps is None else steps
    found = [await app.prompt(run, step=number) for number in numbers]
    assert [each.step for each in found if not each.is_exact] == []
    return [digest_of(each.prompt) for each in found]


def sent(*models: ScriptedModel) -> list[str]:
    """Digests of what models were asked, each once: what was not recorded is asked for again."""
    return list(dict.fromkeys(digest_of(each) for model in models for each in model.prompts))


async def answer(app: limpet.App) -> None:
    """Say what is asked for."""
    [request] = await app.inbox()
    await app.answer(request, "yes", by="ann")


@pytest.mark.parametrize("kind", KINDS)
async def test_killed_in_the_middle_of_a_turn(kind: str) -> None:
    """Before and after every commit: what was recorded is what was sent, and nothing else was."""
    for when in ("before", "after"):
        for nth in (1, 2, 3, 5):
            model = ScriptedModel(says)
            agent = talker(model)
            async with testing.app(agent) as app:
                handle = await app.start(agent, LONG, id="r", conversation="c")
                app.crash_at(when, kind, nth=nth)
                await app.settle()
                await answer(app)
                assert await handle.result() == "well, then"
                assert await inputs(app, "r") == sent(model)
                assert len(model.prompts) <= 3 + app.crashes


async def test_forked_at_every_step() -> None:
    """A fork shares what was asked before the cut, and asks for itself behind it; both are known in both."""
    model = ScriptedModel(says)
    agent = talker(model)
    async with testing.app(agent) as app:
        handle = await app.start(agent, LONG, id="r", conversation="c")
        await app.settle()
        await answer(app)
        await handle.result()
        before = await inputs(app, "r")
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
                assert await inputs(app, fork.id, [*both]) == [*both.values()]
                found = await inputs(app, fork.id)
                assert found == sent(model)
                assert not shared or (found == before[len(shared) :]) == (not patch)
        assert await inputs(app, "r") == before


class Places:
    """Stores of several kinds, encrypted or not."""

    def __init__(self, folder: Path, postgres: str, patch: pytest.MonkeyPatch) -> None:
        self._folder, self._postgres, self._patch = folder, postgres, patch
        self._master = os.urandom(32).hex()

    def open(self, kind: str, agent: limpet.Agent[str, str]) -> limpet.App:
        """An app on a store: `sqlite`, `postgres`, with `-encrypted` behind it."""
        name, _, encrypted = kind.partition("-")
        if encrypted:
            self._patch.setenv("LIMPET_KEYS", self._master)
        else:
            self._patch.delenv("LIMPET_KEYS", raising=False)
        url = f"sqlite:///{self._folder / kind}.db" if name == "sqlite" else self._postgres
        return limpet.open(url, agents=[agent])


@pytest.fixture
def places(tmp_path: Path, postgres_schema: str, monkeypatch: pytest.MonkeyPatch) -> Places:
    """Where runs are."""
    return Places(tmp_path, postgres_schema, monkeypatch)


async def until_asked(app: limpet.App, run: str) -> None:
    """Until a person is asked."""
    handle = await app.get(run)
    async for event in handle.events():
        if event.kind == "request.opened":
            return


@pytest.mark.parametrize("kind", ["sqlite-encrypted", "postgres", "postgres-encrypted"])
async def test_on_every_store(places: Places, kind: str) -> None:
    """Over several runs with summaries, each left in the middle of a turn, and gone on with by another process."""
    models: list[ScriptedModel] = []
    for number in range(5):
        first, second = ScriptedModel(says), ScriptedModel(says)
        models += [first, second]
        async with places.open(kind, talker(first)) as app:
            await app.start(talker(first), f"{number}: {LONG}", id=f"r{number}", conversation="c")
            await until_asked(app, f"r{number}")
        async with places.open(kind, talker(second)) as app:
            assert app.store.codec.is_private == kind.endswith("encrypted")
            await answer(app)
            assert await (await app.get(f"r{number}")).result(timeout="30s") == "well, then"
    async with places.open(kind, talker(ScriptedModel())) as app:
        found = [digest for number in range(5) for digest in await inputs(app, f"r{number}")]
        assert found == sent(*models)
        assert any(each.messages[0].text == SUMMARY for model in models for each in model.prompts)
        assert (await app.replay("r4")).value == "well, then"


MOVES = [("sqlite", "postgres"), ("sqlite-encrypted", "postgres"), ("sqlite", "postgres-encrypted")]


@pytest.mark.parametrize(("here", "there"), MOVES)
async def test_moved_to_another_store(places: Places, tmp_path: Path, here: str, there: str) -> None:
    """In the middle of a turn, with its conversation: what was asked here is known there, and it goes on there."""
    first, second = ScriptedModel(says), ScriptedModel(says)
    async with places.open(here, talker(first)) as app:
        await app.start(talker(first), LONG, id="r", conversation="c")
        await until_asked(app, "r")
        before = await inputs(app, "r")
        await app.export("r", tmp_path / "r.zip")
    async with places.open(there, talker(second)) as app:
        handle = await app.load(tmp_path / "r.zip")
        assert await inputs(app, "r") == before == sent(first)
        await answer(app)
        await app.resume("r")
        assert await handle.result(timeout="30s") == "well, then"
        assert await inputs(app, "r") == sent(first, second)
        assert (await app.replay("r")).value == "well, then"


@pytest.mark.parametrize("there", ["postgres", "postgres-encrypted"])
async def test_a_fork_is_moved(places: Places, tmp_path: Path, there: str) -> None:
    """With what it shares, of its run and of its conversation: what both were asked is known there."""
    model = ScriptedModel(says)
    agent = talker(model)
    async with places.open("sqlite", agent) as app:
        handle = await app.start(agent, LONG, id="r", conversation="c")
        await until_asked(app, "r")
        await answer(app)
        await handle.result(timeout="30s")
        model.prompts.clear()
        *_, last = await steps_of(app, "r")
        fork = await app.fork("r", at=last, id="f", patch={"facts": {"told": "otherwise"}})
        assert await fork.result(timeout="30s") == "well, then"
        assert await inputs(app, "f") == sent(model)
        await app.export("f", tmp_path / "f.zip")
    async with places.open(there, agent) as app:
        await app.load(tmp_path / "f.zip")
        assert await inputs(app, "f") == sent(model)
        assert len(await inputs(app, "r")) == 3
