"""Creating runs: exactly once, even if the reply is lost."""

import asyncio
from typing import Any

from limpet.errors import IdConflict, InvalidAppend, InvalidArgument, InvalidPatch, NotFound
from limpet.events import Lineage, PlanItem, Sealed, StatePatch, inline, verify
from limpet.events import bodies as b
from limpet.stores import Appended, Create, RunFilter, Taken
from limpet.stores.conformance.suite import Owner, World, behaviour, completed, created, expect, started


@behaviour()
async def a_new_run_is_pending_and_claimable(world: World) -> None:
    """A new run is pending and can be claimed immediately."""
    row = await world.create()
    assert (row.status, row.seq, row.fence, row.worker) == ("pending", 1, 0, None)
    assert row.ready_at == row.created == world.clock.now()


@behaviour()
async def the_first_event_is_the_creation(world: World) -> None:
    """Event 1 records the creation, and its chain starts from the genesis hash."""
    await world.create(input={"order": 7})
    [event] = await world.log()
    body = world.store.decode(event)
    assert isinstance(body, b.RunCreated)
    assert (event.seq, event.kind, event.actor, body.input.value()) == (1, "run.created", "test", {"order": 7})
    verify([event])


@behaviour()
async def a_run_is_created_and_claimed_together(world: World) -> None:
    """A run that its creator drives is claimed in the same transaction, and no other worker gets it."""
    await world.worker("w1")
    await world.worker("w2")
    claimed = await world.store.create_claimed("r1", created(), worker="w1", actor="test")
    assert claimed is not None
    assert claimed.row == await world.store.get("r1")
    assert (claimed.row.status, claimed.row.worker, claimed.row.fence, claimed.died) == ("running", "w1", 1, False)
    log = await world.log()
    assert list(claimed.log) == [Sealed(event, world.store.decode(event)) for event in log]
    verify(log)
    assert [event.kind for event in log] == ["run.created", "run.claimed"]
    assert await world.claim("w2") == ()
    assert await world.store.counts() == {("a", "running"): 1}
    await Owner(world, claimed.row).append(started())


@behaviour()
async def a_run_with_a_first_message_is_created_and_claimed_together(world: World) -> None:
    """Whether its conversation is created in the same append, or exists already."""
    await world.worker("w1")
    first = b.MessageAdded(message="m1", role="user", content=inline("hello"))
    new = Create(run="c1", bodies=(b.ConversationCreated(), first), actor="test")
    done = await world.store.append(Create(run="r1", bodies=(created(),), actor="test", worker="w1"), new)
    head = (await world.store.get("c1")).head
    said = world.message_leg(head, b.MessageAdded(message="m2", role="user", content=inline("again")))
    later = await world.store.append(Create(run="r2", bodies=(created(),), actor="test", worker="w1"), said)
    for run, appended in (("r1", done), ("r2", later)):
        assert isinstance(appended, Appended)
        assert appended.claimed is not None
        assert appended.claimed.row == await world.store.get(run)
        log = await world.log(run)
        assert list(appended.claimed.log) == [Sealed(event, world.store.decode(event)) for event in log]
        assert (appended.claimed.row.worker, appended.claimed.row.fence) == ("w1", 1)


@behaviour()
async def a_dead_creator_counts_as_a_dead_worker(world: World) -> None:
    """A run whose creator died before it drove the run is taken over like any other."""
    await world.worker("w1")
    await world.store.create_claimed("r1", created(), worker="w1", actor="test")
    world.advance("11s")
    await world.worker("w2")
    [claimed] = await world.claim("w2")
    assert (claimed.died, claimed.row.deaths, claimed.row.fence) == (True, 1, 2)


@behaviour()
async def a_run_that_must_queue_is_only_created(world: World) -> None:
    """A run that starts later, is exclusive, or whose creator is not registered, is created and not claimed."""
    await world.worker("w1")
    later = created(start_at=world.clock.now() + 1)
    assert await world.store.create_claimed("r1", later, worker="w1", actor="test") is None
    assert await world.store.create_claimed("r2", created(exclusive="s:1"), worker="w1", actor="test") is None
    assert await world.store.create_claimed("r3", created(), worker="w9", actor="test") is None
    rows = [await world.store.get(run) for run in ("r1", "r2", "r3")]
    assert {(row.status, row.worker, row.fence) for row in rows} == {("pending", None, 0)}


@behaviour()
async def an_existing_run_is_not_claimed_by_creating_it_again(world: World) -> None:
    """Creating a pending run again, with a claim, returns no claim and writes nothing. Another input is a conflict."""
    await world.create()
    await world.worker("w1")
    assert await world.store.create_claimed("r1", created(), worker="w1", actor="test") is None
    assert (await world.store.get("r1")).worker is None
    other = created(input=inline(2))
    await expect(IdConflict, world.store.create_claimed("r1", other, worker="w1", actor="test"))


@behaviour()
async def creating_an_existing_run_returns_it(world: World) -> None:
    """Creating a run again with the same agent and input returns the existing run and writes nothing."""
    first = await world.create(input={"a": 1, "b": 2})
    row, fresh = await world.store.create("r1", created(input=inline({"b": 2, "a": 1})), actor="test")
    assert (row, fresh) == (first, False)
    assert len(await world.log()) == 1


@behaviour()
async def another_input_under_the_same_id_is_a_conflict(world: World) -> None:
    """The same id with another input is refused, and the first run stays unchanged."""
    await world.create(input=1)
    error = await expect(IdConflict, world.store.create("r1", created(input=inline(2)), actor="test"))
    assert (error.what, error.id) == ("run", "r1")
    assert [world.store.decode(event) for event in await world.log()] == [created(input=inline(1))]


@behaviour()
async def another_agent_under_the_same_id_is_a_conflict(world: World) -> None:
    """The same id and input for another agent is refused."""
    await world.create(agent="a")
    error = await expect(IdConflict, world.store.create("r1", created("b"), actor="test"))
    assert "'a'" in error.reason


@behaviour()
async def other_options_under_the_same_id_are_a_conflict(world: World) -> None:
    """The same start with another digest of its options is refused. One without a digest is not compared."""
    await world.create(asked="d1")
    for asked in ("d1", ""):
        assert not (await world.store.create("r1", created(asked=asked), actor="test"))[1]
    error = await expect(IdConflict, world.store.create("r1", created(asked="d2"), actor="test"))
    assert "other options" in error.reason


@behaviour()
async def an_integer_and_a_float_are_different_inputs(world: World) -> None:
    """1 and 1.0 are different inputs, since their bytes differ."""
    await world.create(input=1)
    await expect(IdConflict, world.store.create("r1", created(input=inline(1.0)), actor="test"))


@behaviour()
async def the_caller_can_accept_a_differently_encoded_input(world: World) -> None:
    """An input whose bytes differ is the same if the caller's `alike` accepts the stored one."""
    await world.create(input={"order": 1})
    wanted = created(input=inline({"order": 1, "note": ""}))
    row, fresh = await world.store.create(
        "r1", wanted, actor="test", alike=lambda stored: stored.value() == {"order": 1}
    )
    assert (row.seq, fresh) == (1, False)
    await expect(IdConflict, world.store.create("r1", wanted, actor="test", alike=lambda _: False))


@behaviour()
async def creating_an_existing_run_returns_its_current_status(world: World) -> None:
    """Creating an existing run again returns it with its current status, even after its end."""
    owner = await world.own()
    await owner.append(b.RunCompleted(output=inline("x")))
    row = await world.create()
    assert (row.status, row.seq) == ("completed", 3)


@behaviour()
async def concurrent_creations_of_one_id_create_one_run(world: World) -> None:
    """Fifty concurrent creations of one id give one new run, and the same run 49 times."""
    body = created(input=inline("x"))
    done = await asyncio.gather(*(world.store.create("r1", body, actor="test") for _ in range(50)))
    assert sum(fresh for _, fresh in done) == 1
    assert {row.number for row, _ in done} == {done[0][0].number}
    assert await world.kinds() == ["run.created"]


@behaviour()
async def invalid_ids_are_refused(world: World) -> None:
    """An invalid id is refused before anything is written."""
    for id_ in ("", " ", "a b", "-a", ".a", "a/b", "a\0", "ä", "a" * 201, "../x"):
        await expect(InvalidArgument, world.create(id_))
    assert await world.store.count(RunFilter()) == 0


@behaviour()
async def every_valid_id_works(world: World) -> None:
    """Every valid id can be created and found again, with its case."""
    ids = ["a", "Z" * 200, "0", "a.b_c:d@e+f=g-h", "A", "run.1.2"]
    for id_ in ids:
        await world.create(id_, input=id_)
    assert [(await world.store.get(id_)).id for id_ in ids] == ids


@behaviour()
async def a_run_that_does_not_exist_is_not_found(world: World) -> None:
    """Reading an unknown run raises NotFound with its id."""
    error = await expect(NotFound, world.store.get("missing"))
    assert error.id == "missing"
    await expect(NotFound, world.store.read("missing"))


@behaviour()
async def the_row_has_every_field_of_the_creation(world: World) -> None:
    """The row has user, session, conversation, labels, parent, goal and declared steps as given."""
    row = await world.create(
        user="ann",
        session="s1",
        conversation="c1",
        labels={"team": "a", "x": "ü"},
        parent=Lineage(run="p1", name="call#1"),
        steps=9,
        initial=StatePatch(goal="settle", plan=(PlanItem(item="look"), PlanItem(item="tell"))),
    )
    assert (row.user, row.session, row.conversation, row.parent) == ("ann", "s1", "c1", "p1")
    assert (row.labels, row.goal, row.steps, row.items) == ({"team": "a", "x": "ü"}, "settle", 9, 2)


@behaviour()
async def a_run_is_not_claimed_before_its_start_time(world: World) -> None:
    """A run with a start time is not claimed before it."""
    await world.create(start_at=world.clock.now() + 60_000_000)
    await world.worker()
    assert await world.claim() == ()
    world.advance("59s")
    assert await world.claim() == ()
    world.advance("1s")
    assert [claimed.row.id for claimed in await world.claim("w1")] == ["r1"]


@behaviour()
async def the_creation_has_the_stores_time(world: World) -> None:
    """Event 1 has the store's time, so that no wrong clock delays a run."""
    row = await world.create()
    assert (await world.log())[0].time == row.created == world.clock.now()


@behaviour()
async def a_child_and_its_parents_call_are_one_append(world: World) -> None:
    """Creating a child and `agent.called` are written in one append."""
    parent = await world.own("p1")
    call = b.AgentCalled(name="call#1", run="p1.a-1", agent="a", mode="call", asked="")
    child = Create(run="p1.a-1", bodies=(created(parent=Lineage(run="p1", name="call#1")),), actor="w1")
    done = await world.store.append(parent.extend(call), child)
    assert isinstance(done, Appended)
    assert (await world.kinds("p1"))[-1] == "agent.called"
    assert (await world.store.get("p1.a-1")).parent == "p1"


@behaviour()
async def a_child_whose_id_exists_leaves_the_parent_unchanged(world: World) -> None:
    """If the child's id exists, nothing of the append is written, and the existing run is returned."""
    parent = await world.own("p1")
    await world.create("c1", input="other")
    call = b.AgentCalled(name="call#1", run="c1", agent="a", mode="call", asked="")
    done = await world.store.append(parent.extend(call), Create(run="c1", bodies=(created(),), actor="w1"))
    assert isinstance(done, Taken)
    assert done.first == created(input=inline("other"))
    assert (await parent.row()).head == parent.head


@behaviour()
async def a_stream_cannot_start_with_another_event(world: World) -> None:
    """A stream cannot start with an event that does not create one."""
    for body in (started(), completed()):
        await expect(InvalidAppend, world.store.append(Create(run="r1", bodies=(body,), actor="test")))
    await expect(InvalidAppend, world.store.append(Create(run="r1", bodies=(), actor="test")))
    await expect(NotFound, world.store.get("r1"))


@behaviour()
async def an_invalid_initial_patch_is_refused(world: World) -> None:
    """An invalid initial patch is refused before anything is written."""
    await expect(InvalidPatch, world.create(initial=StatePatch(retract=("nothing",))))
    await expect(NotFound, world.store.get("r1"))


@behaviour("durable")
async def an_unstorable_number_is_refused_alone(world: World) -> None:
    """A number that no store can hold is refused alone, and the next operation succeeds."""
    await expect(InvalidAppend, world.create(start_at=2**70))
    await world.create()


@behaviour()
async def indexed_text_over_500_bytes_is_refused(world: World) -> None:
    """A label, agent, user, session or slot of more than 500 bytes is refused before anything is written."""
    long = "ä" * 251
    wrong: list[dict[str, Any]] = [{name: long} for name in ("user", "session", "exclusive")]
    wrong += [{"labels": {"x": long}}, {"labels": {long: "x"}}]
    for more in wrong:
        await expect(InvalidAppend, world.create("r1", **more))
    await expect(InvalidAppend, world.create(agent=long))
    assert await world.store.count() == 0
    await world.create(labels={"x": "ä" * 250}, user="u" * 500, session="s" * 500, exclusive="e" * 500)
