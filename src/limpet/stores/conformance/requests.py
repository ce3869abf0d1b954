"""Requests: decided once, in time, and for the shown arguments; a decision makes the waiting run runnable."""

import asyncio

from msgspec.structs import replace

from limpet.errors import (
    AlreadyAnswered,
    Expired,
    InvalidAppend,
    NotAllowed,
    NotFound,
    WrongState,
)
from limpet.events import bodies as b
from limpet.stores import Appended, Missed, RequestFilter, RequestRow
from limpet.stores.conformance.suite import FAILED, World, answered, asked, behaviour, expect, started


@behaviour()
async def an_answer_closes_its_request(world: World) -> None:
    """An answered request leaves the inbox, and its row has the person who decided."""
    owner = await world.own()
    await owner.append(asked())
    await world.store.send_commands("r1", answered(), actor="ann")
    assert await world.store.requests() == []
    assert (await _request(world)).by == "ann"


@behaviour()
async def a_second_answer_is_refused(world: World) -> None:
    """A second answer is refused, and the error has the person who decided."""
    owner = await world.own()
    await owner.append(asked())
    await world.store.send_commands("r1", answered(by="ann"), actor="ann")
    error = await expect(
        AlreadyAnswered, world.store.send_commands("r1", answered(by="bob", command="c2"), actor="bob")
    )
    assert (error.by, error.status) == ("ann", "answered")


@behaviour()
async def of_concurrent_answers_one_is_accepted(world: World) -> None:
    """Of ten concurrent answers one is accepted and nine are refused."""
    owner = await world.own()
    await owner.append(asked())
    answers = (world.store.send_commands("r1", answered(by=f"p{n}", command=f"c{n}"), actor="x") for n in range(10))
    done = await asyncio.gather(*answers, return_exceptions=True)
    assert sum(isinstance(each, AlreadyAnswered) for each in done) == 9
    assert (await world.kinds()).count("request.answered") == 1


@behaviour()
async def an_unknown_request_cannot_be_answered(world: World) -> None:
    """Answering an unknown request, or one of another run, raises NotFound."""
    owner = await world.own("r1")
    await world.own("r2")
    await owner.append(asked("q1"))
    await expect(NotFound, world.store.send_commands("r1", answered("q2"), actor="ann"))
    await expect(NotFound, world.store.send_commands("r2", answered("q1"), actor="ann"))


@behaviour()
async def an_answer_after_expiry_is_refused(world: World) -> None:
    """An answer after the expiry, by the store's clock, is refused, even if no expiry is in the log yet."""
    owner = await world.own()
    await owner.append(asked(expires=world.clock.now() + 1000))
    world.clock.set(world.clock.now() + 1000)
    error = await expect(Expired, world.store.send_commands("r1", answered(), actor="ann"))
    assert error.request == "q1"


@behaviour()
async def an_answer_just_before_expiry_is_accepted(world: World) -> None:
    """An answer one microsecond before the expiry is accepted."""
    owner = await world.own()
    await owner.append(asked(expires=world.clock.now() + 1000))
    world.clock.set(world.clock.now() + 999)
    await world.store.send_commands("r1", answered(), actor="ann")


@behaviour()
async def an_expired_request_cannot_be_answered(world: World) -> None:
    """An expired request cannot be answered: the first of answer and expiry in the log is final."""
    owner = await world.own()
    await owner.append(asked(), b.RequestExpired(request="q1", outcome="raised"))
    await expect(Expired, world.store.send_commands("r1", answered(), actor="ann"))
    assert (await _request(world)).status == "expired"


@behaviour()
async def an_answer_before_the_expiry_is_final(world: World) -> None:
    """An expiry whose writer has not seen an answer fails, and the answer is final."""
    owner = await world.own()
    await owner.append(asked())
    await world.store.send_commands("r1", answered(), actor="ann")
    expiry = owner.extend(b.RequestExpired(request="q1", outcome="raised"))
    assert isinstance(await owner.send(expiry), Missed)
    assert (await _request(world)).status == "answered"


@behaviour()
async def an_escalated_request_stays_open_for_other_people(world: World) -> None:
    """An escalated request stays open for other people, with a new expiry."""
    owner = await world.own()
    later = world.clock.now() + 10**9
    expiry = b.RequestExpired(request="q1", outcome="escalated", to=("cfo",), expires=later)
    await owner.append(asked(to=("ann",)), expiry)
    [request] = await world.store.requests()
    assert (request.to, request.expires) == (("cfo",), later)
    await world.store.send_commands("r1", answered(by="cfo"), actor="cfo")


@behaviour()
async def a_withdrawn_request_cannot_be_answered(world: World) -> None:
    """A withdrawn request leaves the inbox and cannot be answered."""
    owner = await world.own()
    await owner.append(asked(), b.WaitEnded(name="ask#1", how="withdrawn", request="q1"))
    assert await world.store.requests() == []
    error = await expect(AlreadyAnswered, world.store.send_commands("r1", answered(), actor="ann"))
    assert error.status == "withdrawn"


@behaviour()
async def several_requests_are_answered_in_any_order(world: World) -> None:
    """Several requests of a run can be answered in any order."""
    owner = await world.own()
    await owner.append(asked("q1"), asked("q2"), asked("q3"))
    for place, request in enumerate(("q2", "q3", "q1")):
        await world.store.send_commands("r1", answered(request, command=f"c{place}"), actor="ann")
    assert await world.store.requests() == []


@behaviour()
async def an_answer_makes_the_waiting_run_runnable(world: World) -> None:
    """A run can be claimed immediately after the answer that it waits for."""
    owner = await world.waiting("person", "q1")
    assert await world.claim() == ()
    await world.store.send_commands("r1", answered(), actor="ann")
    assert [claimed.row.id for claimed in await world.claim()] == [owner.run]


@behaviour()
async def an_answer_and_a_grant_are_one_append(world: World) -> None:
    """Several commands in one leg, such as an answer and a grant, are written together or not at all."""
    owner = await world.own()
    await owner.append(asked())
    grant = b.GrantGiven(command="c2", grant="g1", by="ann", tool="t", request="q1")
    await world.store.send_commands("r1", answered(command="c1"), grant, actor="ann")
    assert (await world.kinds())[-2:] == ["request.answered", "grant.given"]
    again = b.GrantGiven(command="c4", grant="g2", by="ann", tool="t")
    await expect(AlreadyAnswered, world.store.send_commands("r1", answered(command="c3"), again, actor="ann"))
    assert (await world.kinds()).count("grant.given") == 1


@behaviour()
async def an_answer_to_earlier_arguments_is_refused(world: World) -> None:
    """An answer with the digest of earlier arguments is refused."""
    owner = await world.own()
    await owner.append(asked(digest="new"))
    for digest in ("", "old"):
        stale = b.RequestAnswered(command="c1", request="q1", decision="approved", by="ann", digest=digest)
        await expect(WrongState, world.store.send_commands("r1", stale, actor="ann"))
    await world.store.send_commands(
        "r1", b.RequestAnswered(command="c1", request="q1", decision="approved", by="ann", digest="new"), actor="ann"
    )


@behaviour()
async def an_approval_is_used_once(world: World) -> None:
    """An approval is used by the append of its step; a second use, or one without approval, writes nothing."""
    owner = await world.own()
    await owner.append(asked("q1", kind="approval"))
    await expect(WrongState, owner.send(owner.extend(_granted("q1"))))
    yes = b.RequestAnswered(command="c1", request="q1", decision="approved", by="ann")
    owner.head = await world.store.send_commands("r1", yes, actor="ann")
    await owner.append(_granted("q1"))
    assert (await _request(world)).status == "used"
    await expect(WrongState, owner.send(owner.extend(_granted("q1"))))
    assert (await owner.row()).head == owner.head


@behaviour()
async def the_append_that_uses_an_approval_can_be_repeated(world: World) -> None:
    """The append that uses an approval can be repeated, and uses it once."""
    owner = await world.own()
    await owner.append(asked("q1", kind="approval"))
    yes = b.RequestAnswered(command="c1", request="q1", decision="approved", by="ann")
    owner.head = await world.store.send_commands("r1", yes, actor="ann")
    leg = owner.extend(_granted("q1"))
    await world.store.append(leg)
    assert isinstance(await world.store.append(leg), Appended)
    assert (await world.kinds()).count("step.started") == 1


@behaviour()
async def an_approval_can_be_used_after_the_requests_expiry(world: World) -> None:
    """An approval given in time can be used after the request's expiry."""
    owner = await world.own()
    expires = await world.store.now() + 10_000_000
    await owner.append(asked("q1", kind="approval", expires=expires))
    yes = b.RequestAnswered(command="c1", request="q1", decision="approved", by="ann")
    owner.head = await world.store.send_commands("r1", yes, actor="ann")
    world.advance("10s")
    await owner.append(_granted("q1"))
    assert await world.store.requests() == []


@behaviour()
async def a_run_that_is_being_cancelled_refuses_answers(world: World) -> None:
    """A run that is being cancelled accepts no answers, except to requests of kind `compensation`."""
    owner = await world.own()
    await owner.append(asked("q1"), asked("q2", kind="compensation", name="undo/1/request#1"))
    await world.store.send_commands("r1", b.CancelRequested(command="c1", reason="enough"), actor="ann")
    await expect(WrongState, world.store.send_commands("r1", answered("q1", command="c2"), actor="ann"))
    await world.store.send_commands("r1", answered("q2", command="c3"), actor="ann")
    assert [row.id for row in await world.store.requests()] == ["q1"]


@behaviour()
async def an_answer_by_a_previous_addressee_is_refused(world: World) -> None:
    """An answer is refused if the request was escalated to other people after the check."""
    owner = await world.own()
    await owner.append(asked(to=("ann",), expires=await world.store.now() + 10_000_000))
    await owner.append(b.RequestExpired(request="q1", outcome="escalated", to=("cfo",)))
    error = await expect(NotAllowed, world.store.send_commands("r1", answered(), actor="ann", judged=("ann",)))
    assert error.to == ("cfo",)
    await world.store.send_commands("r1", answered(by="cfo"), actor="cfo", judged=("cfo",))
    assert (await _request(world)).by == "cfo"


@behaviour()
async def two_decisions_on_one_request_in_one_leg_are_refused(world: World) -> None:
    """Two decisions on one request in one command are refused as a whole."""
    owner = await world.own()
    await owner.append(asked())
    two = (answered(by="ann", command="c1"), answered(by="bob", command="c2"))
    await expect(InvalidAppend, world.store.send_commands("r1", *two, actor="ann"))
    assert len(await world.store.requests()) == 1


@behaviour()
async def a_resumed_run_may_open_its_request_again(world: World) -> None:
    """A resumed run may open the same request again, which returns to the inbox."""
    owner = await world.own()
    await owner.append(asked(), FAILED)
    await world.store.send_commands("r1", b.ResumeRequested(command="c1"), actor="ann")
    await (await world.take()).append(asked())
    await world.store.send_commands("r1", answered(command="c2"), actor="ann")
    assert (await _request(world)).status == "answered"


def _granted(request: str) -> b.StepStarted:
    return replace(started(), grant=request)


async def _request(world: World) -> RequestRow:
    [request] = await world.store.requests(RequestFilter(status=None, run="r1"))
    return request
