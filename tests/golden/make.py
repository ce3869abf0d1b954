"""Writes golden files of this version to `tests/golden/<version>`: `python -m tests.golden.make`.

The files are a run with every kind of event as JSON lines, the state that it folds to, and a SQLite file. Files of
released versions are never written again.
"""

import asyncio
import gzip
import shutil
from pathlib import Path

import msgspec
from msgspec import Raw

import limpet
from limpet.clock import FrozenClock
from limpet.events import START, AnyBody, Event, Head, inline, seal
from limpet.events import bodies as b
from limpet.events.parts import (
    Artifact,
    Constraints,
    Fact,
    Failure,
    Limits,
    Lineage,
    PlanItem,
    RecordPatch,
    Revision,
    Spent,
    StatePatch,
    Wait,
)
from limpet.events.values import encode
from limpet.journal.snapshots import save
from limpet.state import fold
from limpet.stores import Store
from limpet.stores.conformance.suite import Harness, World, answered, asked, completed, started
from limpet.stores.sqlite import SqliteBackend

FOLDER = Path(__file__).parent / limpet.__version__
FAILURE = Failure(
    type="httpx.ConnectTimeout",
    mro=("httpx.ConnectTimeout", "builtins.Exception"),
    message="no answer",
    facts=inline({"url": "/refunds"}),
    traceback="…",
)


def story() -> list[tuple[AnyBody, int]]:
    """Return every kind of event of a run's log, with its fence."""
    patch = StatePatch(
        goal="settle o-1",
        constraints=Constraints(human_in_the_loop={"required_for_risk_levels": ["external_action"]}),
        budget=Limits(max_steps=20, max_wall_time_ms=300_000, max_llm_tokens=200_000, max_cost=1.5),
        plan=(PlanItem(item="look"), PlanItem(item="refund")),
        facts=(Fact(key="cents", value=Raw(b"4900"), source="fetch_order", step=1),),
        questions=("Which account?",),
        artifacts=(Artifact(artifact_id="a1", type="log", summary="a log", bytes=5, step=1),),
        flags=("careful",),
        data=Raw(b'{"mood":"fine"}'),
    )
    change = StatePatch(
        revise=(Revision(index=0, status="done"),), answered={"Which account?": "the first"}, lower=("careful",)
    )
    first = b.RunCreated(
        agent="support",
        agent_version="1",
        input=inline({"order": "o-1", "text": "ü\0😀", "n": 2**70, "f": 0.1}),
        user="ann",
        session="s1",
        conversation="c1",
        labels={"team": "a"},
        parent=Lineage(run="p1", name="call#1"),
        initial=StatePatch(goal="begin"),
        steps=9,
        start_at=5,
        deadline=10**15,
        exclusive="session:s1",
        contract="abc",
    )
    owner: list[AnyBody] = [
        b.TurnStarted(loop="turns#1", number=1),
        b.StatePatched(name="patch#1", patch=patch, number=1),
        b.StatePatched(name="patch#2", patch=change),
        b.ValueRecorded(name="now#1", value=inline(1.5)),
        b.VersionChosen(name="version#1", change="new-mail", chosen=True),
        started(1),
        b.BudgetReserved(number=1, tokens=500, cost=0.01),
        b.StepProgressed(number=1, attempt=1, note="half", fraction=0.5, partial=inline([1])),
        b.StepFailed(name="t#1", number=1, attempt=1, failure=FAILURE, retry_at=7, spent=Spent(tokens=10)),
        started(1, attempt=2),
        b.StepUnknown(name="t#1", number=1, attempt=2, reason="timeout", failure=FAILURE),
        b.StepResolved(name="t#1", number=1, attempt=2, how="verify", outcome="applied", output=inline("R-1")),
        started(2),
        completed(2, output={"ok": [True, None, "\u2028"]}),
        b.DecisionMade(
            name="d#1", question="refund?", chosen=inline("full"), options=inline(["none", "full"]), because="broken"
        ),
        b.ArtifactStored(name="art#1", artifact_id="a2", type="pdf", summary="a page", bytes=3, content=inline("abc")),
        b.RiskFlagged(flag="budget_pressure", detail="max_steps"),
        asked("q1", to=("finance",), risk="external_action", expires=10**15),
        b.RequestExpired(request="q1", outcome="escalated", to=("cfo",), expires=10**15 + 1),
        b.AgentCalled(name="call#1", run="c1", agent="check", mode="call", asked="d", budget=Limits(max_steps=3)),
        b.TimerSet(name="sleep#1", wake=99),
        b.WaitOpened(name="receive#1", signal="user", expires=98),
        b.WaitEnded(name="sleep#1", how="fired"),
        b.MessageSaid(name="say#1", conversation="c1", message=2),
        b.ExternalRead(source="portfolio", key="k", number=1, stale_at=77),
        b.ExternalInvalidated(source="portfolio", number=1),
        b.CompensationSkipped(number=9, reason="irreversible"),
        b.CompensationStarted(number=1, attempt=1, key="k:undo"),
        b.CompensationFailed(number=1, attempt=1, failure=FAILURE, retry_at=8),
        b.CompensationCompleted(number=1, attempt=2),
    ]
    commands: list[AnyBody] = [
        answered("q1"),
        b.GrantGiven(command="c2", grant="g1", by="cfo", tool="refund", request="q1"),
        b.GrantRevoked(command="c3", grant="g1", by="cfo", because="enough"),
        b.AgentReturned(command="c4", run="c1", outcome="failed", failure=FAILURE, spent=Spent(steps=2, tokens=5)),
        b.SignalReceived(command="c5", signal="user", value=inline("hi"), by="ann"),
        b.BudgetExtended(command="c6", by="cfo", limits=Limits(max_steps=40)),
        b.DeadlineExtended(command="c10", by="cfo", deadline=1_900_000_000_000_000, because="the bank is slow"),
        b.PatchReceived(command="c11", by="ann", patch=StatePatch(goal="Refund the order")),
        b.PauseRequested(command="c7", by="ann"),
        b.CancelRequested(command="c8", reason="enough", by="ann"),
    ]
    later: list[tuple[AnyBody, int]] = [
        (b.RunReleased(reason="drain"), 1),
        (b.RunClaimed(worker="w2", died=True), 2),
        (b.RunWaiting(waits=(Wait(what="person", key="q1"),), wake=5), 2),
        (b.ResumeRequested(command="c9", by="ann"), 2),
        (b.RunClaimed(worker="w3"), 3),
        (b.RunFailed(failure=FAILURE, number=1), 3),
        (b.ResumeRequested(command="c10"), 3),
        (b.RunForked(run="golden", at=40, step=1, effects="ask", patch=StatePatch(goal="again")), 3),
        (b.RunClaimed(worker="w4"), 4),
        (b.RunCancelled(reason="enough", by="ann"), 4),
        (b.RunCompleted(output=inline("R-1")), 4),
        (b.ScoreGiven(command="c12", score="quality", number=1, value=0.5, comment="slow", by="ann", via="cli"), 4),
        (b.ScoreGiven(command="c13", score="verdict", value="good", by="ben"), 4),
        (b.ScoreWithdrawn(command="c14", score="verdict", by="ben"), 4),
        (b.RunMoved(command="c15", engine="temporal", by="ann", via="cli"), 4),
    ]
    return [(first, 0), (b.RunClaimed(worker="w1"), 1), *((body, 1) for body in (*owner, *commands)), *later]


def talk() -> list[AnyBody]:
    """Return every kind of event of a conversation."""
    return [
        b.ConversationCreated(session="s1", user="ann", labels={"topic": "x"}),
        b.ConversationForked(conversation="c0", at=3),
        b.MessageAdded(message="m1", role="tool", content=inline("hi"), run="r", number=1, call="k", pinned=True),
        b.ConversationCompacted(first=1, last=2, summary=inline("short"), level=2, run="r", number=3),
    ]


def audited() -> list[AnyBody]:
    """Return every kind of event of an audit log."""
    return [
        b.AuditStarted(month="2026-11"),
        b.AuditRecorded(
            command="e1",
            by="ann",
            via="http",
            action="cancel",
            kind="person",
            tenant="main",
            subject="r1",
            outcome="wrong_state",
            address="10.0.0.7",
            request="key-1",
            count=2,
        ),
    ]


def sealed(run: str, bodies: list[tuple[AnyBody, int]]) -> list[Event]:
    """Return the bodies as a chain of events."""
    head: Head = START
    events = []
    for place, (body, fence) in enumerate(bodies):
        events.append(seal(head, run, body, time=1_700_000_000_000_000 + place, fence=fence, actor="golden").event)
        head = events[-1].head
    return events


def line(event: Event) -> bytes:
    """Return an event as a JSON line."""
    return encode({**msgspec.structs.asdict(event), "body": event.body.decode(), "hash": event.hash.hex()})


async def make_store(path: Path) -> None:
    """Write a SQLite file with a run, a request, messages of a conversation and a snapshot."""
    async with World(Harness(backend=lambda clock: SqliteBackend(path, clock)), FrozenClock()) as world:
        owner = await world.own("golden", labels={"team": "a"})
        await owner.append(started(1), completed(1, output={"x": [1, None]}), asked("q1", to=("ann",)))
        await save(world.store, owner.head, fold(await world.log("golden")))
        await owner.append(b.RunWaiting(waits=(Wait(what="person", key="q1"),)))
        await world.store.retire("w1")


async def dump(store: Store) -> bytes:
    """Return the log of the run in the SQLite file, as JSON lines."""
    return b"".join([line(event) + b"\n" async for event in store.log("golden")])


def shared() -> list[AnyBody]:
    """Return every kind of event of a shared record."""
    patch = RecordPatch(
        facts=(Fact(key="cents", value=Raw(b"4900"), source="fetch_order", derived_from=("order",)),),
        retract=("old",),
        plan=(PlanItem(item="look", status="done"),),
        questions={"q1": "Which account?"},
        answered={"q2": "the first"},
        close=("q3",),
        data={"mood": Raw(b'"fine"')},
        unset=("gone",),
    )
    return [
        b.RecordCreated(record="board"),
        b.RecordPatched(command="r:1:patch", by="r", via="run", read=1, patch=patch, number=3),
    ]


def main() -> None:
    """Write the folder of this version."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    run = sealed("golden", story())
    (FOLDER / "run.jsonl").write_bytes(b"".join(line(event) + b"\n" for event in run))
    (FOLDER / "state.json").write_bytes(encode(fold(run)) + b"\n")
    talking = sealed("talk", [(body, 0) for body in talk()])
    (FOLDER / "conversation.jsonl").write_bytes(b"".join(line(event) + b"\n" for event in talking))
    audit = sealed("limpet.audit.2026-11", [(body, 0) for body in audited()])
    (FOLDER / "audit.jsonl").write_bytes(b"".join(line(event) + b"\n" for event in audit))
    record = sealed("limpet.record.board", [(body, 0) for body in shared()])
    (FOLDER / "record.jsonl").write_bytes(b"".join(line(event) + b"\n" for event in record))
    asyncio.run(make_store(FOLDER / "store.db"))
    (FOLDER / "store.gz").write_bytes(gzip.compress((FOLDER / "store.db").read_bytes(), mtime=0))
    for leftover in FOLDER.glob("store.db*"):
        leftover.unlink()


if __name__ == "__main__":
    main()
