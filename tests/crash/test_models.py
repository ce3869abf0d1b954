"""LLM agents whose processes are killed: the same result, no effect twice, and no recorded reply requested again.

The model is an HTTP server in its own process that outlives all others and counts its requests.
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
from tests.crash.models import DISK, SUPPORT, ProcessForker, agents_of
from tests.crash.test_runs import KILLED, RunHarness, run_cases
from tests.servers.openai_server import ServerProcess

RESULTS = {"disk": {"fixed": True, "what": "cleaned the logs"}, "support": "All is settled."}
SCRIPTS = {"disk": DISK, "support": SUPPORT}
TOOLS = ("models_order", "models_customer", "models_refund", "models_mail")


class ModelHarness(RunHarness):
    """A store, a service, a model, and a person who answers everything."""

    forker: ProcessForker
    model: ServerProcess

    @property
    def name(self) -> str:
        """Prefix of run ids; the model serves the runs of all tests."""
        return "lite" if self.is_sqlite else "pg"

    async def run_agent(self, kind: str, run: str, where: str = "") -> int:
        """Run an agent in a process until it has ended and its requests to the service are finished."""
        order = (self.url, self.service.server_port, self.model.url, kind, run, where)
        ended = await self.forker.ended(*order)
        await asyncio.to_thread(self.service.settle)
        return ended

    async def answer_all(self) -> None:
        """Answer every request positively, forever."""
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
        """Check the result of every run, and that the model was called once per turn plus at most once per kill."""
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
            await self.check_conversation(kind, run)
            await self.check_inputs(run)
            self.check_effects(kind, run)

    async def check_inputs(self, run: str) -> None:
        """Check that all prompts are rebuilt exactly and equal what the server received."""
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
        """Check that each effect happened once."""
        if kind == "disk":
            assert self.service.applied[f"/keyed/{run}/clean"] == 1
        else:
            assert self.service.applied[f"/keyed/{run}/refund"] == self.service.arrived[f"/once/{run}/mail"] == 1

    async def check_conversation(self, kind: str, run: str) -> None:
        """Check that every message exists once and in order, and every call is followed by its result."""
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
def helpers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ProcessForker, ServerProcess]]:
    """The process that forks others and the model, for all tests of this module."""
    with (
        ProcessForker() as forker,
        ServerProcess("tests.crash.models:scripted_answer", tmp_path_factory.mktemp("model")) as model,
    ):
        yield forker, model


@pytest.fixture(params=["sqlite", "postgres"])
async def harness(
    request: pytest.FixtureRequest, tmp_path: Path, helpers: tuple[ProcessForker, ServerProcess]
) -> AsyncIterator[ModelHarness]:
    """A harness on each kind of store."""
    is_sqlite = request.param == "sqlite"
    url = f"sqlite:///{tmp_path / 'limpet.db'}" if is_sqlite else request.getfixturevalue("postgres_schema")
    with Service() as service:
        async with limpet.open(url, worker=False) as app:
            harness = ModelHarness(url, service, app)
            harness.forker, harness.model = helpers
            answering = asyncio.create_task(harness.answer_all())
            yield harness
            answering.cancel()
            with suppress(asyncio.CancelledError):
                await answering


@pytest.mark.parametrize(("kind", "last", "by"), [("disk", 54, 8), ("support", 150, 30)])
async def test_an_llm_run_killed_at_any_commit_is_continued(
    harness: ModelHarness, full: bool, kind: str, last: int, by: int
) -> None:
    """A model call is repeated only if its process died before the reply was recorded."""
    kills: dict[str, int] = {}

    async def trial(place: int) -> int:
        run = f"{harness.name}-{kind}-{place}"
        ended = await harness.run_agent(kind, run, f"commit:{place}")
        assert ended in (0, KILLED)
        kills[run] = int(ended == KILLED)
        assert await harness.run_agent(kind, run) == 0
        return ended

    ended = await run_cases(range(1, last) if full else range(7, last // 2, by), trial)
    await harness.check_all(kind, kills)
    print(f"killed at {ended.count(KILLED)} of {len(ended)} places")
    assert ended.count(KILLED) > len(ended) * 0.5
    assert not full or ended[-1] == 0


async def test_an_llm_run_killed_in_a_tool_and_at_a_later_commit_is_continued(
    harness: ModelHarness, full: bool
) -> None:
    """The effect has happened, but its result is not recorded."""
    kills: dict[str, int] = {}

    async def trial(case: tuple[str, int]) -> None:
        tool, place = case
        run = f"{harness.name}-{tool}-{place}"
        assert await harness.run_agent("support", run, f"tool:{tool}") == KILLED
        kills[run] = 1
        if place:
            kills[run] += await harness.run_agent("support", run, f"commit:{place}") == KILLED
        assert await harness.run_agent("support", run) == 0

    cases: list[Any] = [*product(TOOLS, range(12))]
    await run_cases(cases if full else [("models_mail", 2)], trial)
    await harness.check_all("support", kills)


def test_llm_agents_can_be_defined_without_a_model() -> None:
    """No API key is needed."""
    assert [agent.name for agent in agents_of("support", "v")] == ["models_support", "models_checker"]
