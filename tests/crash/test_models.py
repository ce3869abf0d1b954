"""Agents of a model whose processes are killed: the same result, nothing twice, and no recorded reply is asked again.

The model is behind HTTP, in a process of its own that outlives all others, and counts what it is asked.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import pytest

import limpet
from limpet.events import bodies as b
from limpet.llm.transcript import message_of
from tests.crash.counting_service import Service
from tests.crash.models import DISK, SUPPORT, Nursery, agents_of
from tests.crash.test_runs import KILLED, Scene, each
from tests.servers.openai_server import ServerProcess

RESULTS = {"disk": {"fixed": True, "what": "cleaned the logs"}, "support": "All is settled."}
SCRIPTS = {"disk": DISK, "support": SUPPORT}
TOOLS = ("models_order", "models_customer", "models_refund", "models_mail")


class Talk(Scene):
    """A store, a service, a model, and somebody who answers whatever is asked."""

    nursery: Nursery
    model: ServerProcess

    @property
    def name(self) -> str:
        """The model knows all runs of all tests."""
        return "lite" if self.is_sqlite else "pg"

    async def let(self, kind: str, run: str, where: str = "") -> int:
        """Drive a run in a process, until that has ended, and everything that it sent is done."""
        order = (self.url, self.service.server_port, self.model.url, kind, run, where)
        ended = await self.nursery.ended(*order)
        await asyncio.to_thread(self.service.settle)
        return ended

    async def answer_all(self) -> None:
        """Say yes to whatever is asked, for ever."""
        with self.store.watch() as watch:
            while True:
                for request in await self.app.inbox():
                    with suppress(limpet.AlreadyAnswered, limpet.WrongState):
                        if request.kind == "approval":
                            await self.app.approve(request, by="parent")
                        else:
                            await self.app.answer(request, "yes", by="parent")
                await watch.changed()

    async def check_all(self, kind: str, kills: dict[str, int]) -> None:
        """Every run came to the same; the model was asked once for each turn, and once more for each kill at most."""
        asked: Counter[tuple[str, int]] = Counter()
        for request in self.model.stats()["bodies"]:
            messages = request["messages"]
            run = next(each["content"] for each in messages if each["role"] == "user").split(" ")[0]
            asked[run, sum(each["role"] == "assistant" for each in messages)] += 1
        turns = len(SCRIPTS[kind])
        for run, killed in kills.items():
            assert await self.check(run) == RESULTS[kind]
            times = [asked[run, turn] for turn in range(turns)]
            assert min(times) == 1
            assert sum(times) <= turns + killed
            await self.check_talk(kind, run)
            await self.check_inputs(run)
            self.check_effects(kind, run)

    async def check_inputs(self, run: str) -> None:
        """What the model was asked is made again exactly, and it is what the server got."""
        got = [request["messages"] for request in self.model.stats()["bodies"]]
        numbers = {
            body.number for _, body in await self.log(run) if isinstance(body, b.StepStarted) and body.kind == "model"
        }
        for number in numbers:
            found = await self.app.prompt(run, step=number)
            assert found.is_exact
            texts = [message.text for message in found.prompt.messages]
            assert texts in [[each["content"] or "" for each in messages] for messages in got]

    def check_effects(self, kind: str, run: str) -> None:
        """None twice, none lost."""
        if kind == "disk":
            assert self.service.applied[f"/keyed/{run}/clean"] == 1
        else:
            assert self.service.applied[f"/keyed/{run}/refund"] == self.service.arrived[f"/once/{run}/mail"] == 1

    async def check_talk(self, kind: str, run: str) -> None:
        """Every message is there once, in order; every call has its result, right behind it."""
        wanted = ["user"]
        for _, calls in SCRIPTS[kind]:
            wanted += ["assistant", *["tool"] * len(calls)]
        bodies = [body for _, body in await self.log(f"{run}.chat") if isinstance(body, b.MessageAdded)]
        assert [body.role for body in bodies] == wanted
        assert not any(body.repaired for body in bodies)
        assert len({body.message for body in bodies}) == len(bodies)
        open_: list[str] = []
        for body in bodies:
            message = message_of(body.role, await self.store.unpack(body.content), body.call or "")
            if message.role == "tool":
                assert message.call == open_.pop(0)
            else:
                assert open_ == []
                open_ = [call.id for call in message.calls]
        assert open_ == []
        await self.app.verify(f"{run}.chat")


@pytest.fixture(scope="module")
def helpers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Nursery, ServerProcess]]:
    """What begins processes, and the model that they ask, for all of these tests."""
    with Nursery() as nursery, ServerProcess("tests.crash.models:says", tmp_path_factory.mktemp("model")) as model:
        yield nursery, model


@pytest.fixture(params=["sqlite", "postgres"])
async def talk(
    request: pytest.FixtureRequest, tmp_path: Path, helpers: tuple[Nursery, ServerProcess]
) -> AsyncIterator[Talk]:
    """On each kind of store."""
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path / 'limpet.db'}" if is_sqlite else request.getfixturevalue("postgres_schema")
    with Service() as service:
        async with limpet.open(url, worker=False) as app:
            talk = Talk(url, service, app)
            talk.nursery, talk.model = helpers
            answering = asyncio.create_task(talk.answer_all())
            yield talk
            answering.cancel()
            with suppress(asyncio.CancelledError):
                await answering


@pytest.mark.parametrize(("kind", "last", "by"), [("disk", 44, 16), ("support", 150, 60)])
async def test_killed_before_and_after_every_commit(talk: Talk, full: bool, kind: str, last: int, by: int) -> None:
    """The next process goes on, and whoever asks the model again was killed before its reply was recorded."""
    kills: dict[str, int] = {}

    async def trial(place: int) -> int:
        run = f"{talk.name}-{kind}-{place}"
        ended = await talk.let(kind, run, f"commit:{place}")
        assert ended in (0, KILLED)
        kills[run] = int(ended == KILLED)
        assert await talk.let(kind, run) == 0
        return ended

    ended = await each(range(1 if full else 7, last, 1 if full else by), trial)
    await talk.check_all(kind, kills)
    print(f"killed at {ended.count(KILLED)} of {len(ended)} places")
    assert ended.count(KILLED) > len(ended) * 0.6
    assert not full or ended[-1] == 0


async def test_killed_in_every_tool_and_again_after_it(talk: Talk, full: bool) -> None:
    """The effect has happened, and nobody heard; the next process dies at a commit."""
    kills: dict[str, int] = {}

    async def trial(case: tuple[str, int]) -> None:
        tool, place = case
        run = f"{talk.name}-{tool}-{place}"
        assert await talk.let("support", run, f"tool:{tool}") == KILLED
        kills[run] = 1
        if place:
            kills[run] += await talk.let("support", run, f"commit:{place}") == KILLED
        assert await talk.let("support", run) == 0

    cases: list[Any] = [*product(TOOLS, range(12))]
    await each(cases if full else [("models_mail", 2)], trial)
    await talk.check_all("support", kills)


def test_the_agents_can_be_looked_at_without_a_model() -> None:
    """They are defined, and nothing was asked for a key."""
    assert [agent.name for agent in agents_of("support", "v")] == ["models_support", "models_checker"]
