"""Access tokens: who a token stands for, until when, and when it was last used."""

import asyncio

from msgspec.structs import replace

from limpet.errors import IdConflict
from limpet.stores import TokenRow
from limpet.stores.conformance.suite import World, behaviour, created, expect

SECOND = 1_000_000
MINUTE = 60 * SECOND


def _token(id: str = "t1", name: str = "ann") -> TokenRow:
    return TokenRow(
        id=id,
        name=name,
        kind="person",
        groups=("finance", "a\0b 😀"),
        roles=("operator", "approver"),
        rights=("raw",),
        digest=bytes(range(224, 256)),
        created_by="root",
    )


@behaviour()
async def a_token_is_found_by_its_id(world: World) -> None:
    """Its row is the one that was added, with the store's time."""
    assert await world.store.token("t1") is None
    row = await world.store.add_token(_token())
    assert row == replace(_token(), created=world.clock.now())
    assert await world.store.token("t1") == row
    assert await world.store.token("t") is None
    assert await (await world.another()).token("t1") == row


@behaviour()
async def a_token_id_is_used_once(world: World) -> None:
    """A second token with the same id is refused, and the first one stays unchanged."""
    row = await world.store.add_token(_token())
    error = await expect(IdConflict, world.store.add_token(_token(name="bob")))
    assert (error.what, error.id) == ("token", "t1")
    assert await world.store.tokens() == [row]


@behaviour()
async def one_of_many_tokens_with_one_id_is_added(world: World) -> None:
    """However many stores try at the same time, exactly one is added."""
    stores = [world.store, *[await world.another() for _ in range(4)]]
    tries = [store.add_token(_token(name=f"n{place}")) for place, store in enumerate(stores)]
    done = await asyncio.gather(*tries, return_exceptions=True)
    [row] = [each for each in done if isinstance(each, TokenRow)]
    assert [type(each) for each in done].count(IdConflict) == len(stores) - 1
    assert await world.store.token("t1") == row


@behaviour()
async def tokens_are_listed_by_page_newest_first(world: World) -> None:
    """Tokens of the same time are in the order of their ids, and no page repeats one."""
    for id in ("b", "a", "c"):
        await world.store.add_token(_token(id))
    world.advance("1s")
    await world.store.add_token(_token("a2"))
    assert [row.id for row in await world.store.tokens()] == ["a2", "c", "b", "a"]
    first = await world.store.tokens(limit=2)
    rest = await world.store.tokens(before=(first[-1].created, first[-1].id), limit=2)
    assert [row.id for row in (*first, *rest)] == ["a2", "c", "b", "a"]
    assert await world.store.tokens(before=(rest[-1].created, rest[-1].id)) == []


@behaviour()
async def a_token_is_revoked_once(world: World) -> None:
    """The first revocation stands, with its time and its sender; all other fields stay."""
    row = await world.store.add_token(_token())
    world.advance("5s")
    assert await world.store.revoke_token("t1", "eve")
    revoked = replace(row, revoked=world.clock.now(), revoked_by="eve")
    world.advance("5s")
    assert not await world.store.revoke_token("t1", "bob")
    assert await world.store.token("t1") == revoked
    assert not await world.store.revoke_token("unknown", "bob")


@behaviour()
async def the_use_of_a_token_is_recorded_at_most_once_a_minute(world: World) -> None:
    """The store's clock decides. A clock that was set back does not stop the records."""
    row = await world.store.add_token(_token())
    assert await world.store.use_token("t1")
    first = world.clock.now()
    assert await world.store.token("t1") == replace(row, last_used=first)
    world.advance("59s")
    assert not await world.store.use_token("t1")
    assert await world.store.token("t1") == replace(row, last_used=first)
    world.advance("1s")
    assert await world.store.use_token("t1")
    assert await world.store.token("t1") == replace(row, last_used=first + MINUTE)
    world.clock.set(first - 100 * MINUTE)
    assert await world.store.use_token("t1")
    assert not await world.store.use_token("unknown")


@behaviour()
async def a_revoked_token_stays_revoked_when_it_is_used(world: World) -> None:
    """A record of its use does not undo the revocation."""
    await world.store.add_token(_token())
    assert await world.store.revoke_token("t1", "eve")
    assert await world.store.use_token("t1")
    row = await world.store.token("t1")
    assert row is not None
    assert (row.revoked, row.revoked_by, row.last_used) == (world.clock.now(), "eve", world.clock.now())


@behaviour()
async def sessions_are_found_and_not_listed(world: World) -> None:
    """A session and a login code keep their purpose and their parent."""
    row = await world.store.add_token(_token())
    session = await world.store.add_token(replace(_token("s1"), purpose="session", parent="t1", expires=5))
    code = await world.store.add_token(replace(_token("l1"), purpose="login", parent="t1", expires=5, roles=()))
    assert await world.store.token("s1") == session
    assert (session.purpose, session.parent) == ("session", "t1")
    assert await (await world.another()).token("l1") == code
    assert await world.store.tokens() == [row]


@behaviour()
async def expired_sessions_are_dropped(world: World) -> None:
    """Only those that expired before the time, and no other token."""
    now = world.clock.now()
    rows = [
        replace(_token("t1"), expires=now + 1),
        replace(_token("s1"), purpose="session", parent="t1", expires=now + 1),
        replace(_token("s2"), purpose="session", parent="t1", expires=now + 2),
        replace(_token("l1"), purpose="login", parent="t1", expires=now + 1),
    ]
    for row in rows:
        await world.store.add_token(row)
    await world.store.drop_sessions(now + 2)
    assert [row.id for row in rows if await world.store.token(row.id) is not None] == ["t1", "s2"]


@behaviour()
async def maintenance_leaves_tokens_alone(world: World) -> None:
    """Rebuilding, pruning and recounting change no token."""
    row = await world.store.add_token(_token())
    await world.store.create("r1", created(), actor="test")
    await world.store.rebuild("r1")
    await world.store.recount()
    assert await world.store.tokens() == [row]
