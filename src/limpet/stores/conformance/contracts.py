"""Contracts of agents: saved by their apps, found by name, and written only when they change."""

import asyncio
from contextlib import closing

from limpet.errors import InvalidValue
from limpet.events.values import digest
from limpet.stores import ContractRow
from limpet.stores.conformance.suite import World, behaviour, contract, created, expect

ODD = ("", " a", "a'; DROP TABLE x; --", "%_\\", "ä😀", "a\0b", "a\ue000b", '["a"', "a:b", "a\n", "A", "a")


@behaviour()
async def a_contract_is_read_back_unchanged(world: World) -> None:
    """A contract comes back with its bytes, its hash and its time of saving."""
    for place, data in enumerate((b'{"input":{"type":"string"}}', b'{ "a" : 1e2 }', b"\x00\xff'", b"", b"x" * 2**20)):
        row = ContractRow(agent=f"a{place}", version="1", hash=digest(place), contract=data)
        await world.store.save_contracts([row])
        assert await _found(world, f"a{place}") == [("1", digest(place), data, world.clock.now())]
        world.advance("1s")


@behaviour()
async def an_agent_without_a_contract_gives_an_empty_list(world: World) -> None:
    """An agent without a contract gives an empty list."""
    assert (await world.store.contracts(), await world.store.contracts("a")) == ([], [])
    await world.store.save_contracts([contract("a")])
    assert await world.store.contracts("b") == []


@behaviour()
async def saving_no_contracts_changes_nothing(world: World) -> None:
    """Saving no contracts changes nothing."""
    await world.store.save_contracts([])
    assert await world.store.contracts() == []


@behaviour()
async def an_unchanged_contract_is_not_written_again(world: World) -> None:
    """An unchanged contract is not written again, from any store, and keeps its first time of saving."""
    await world.store.save_contracts([contract("a"), contract("b")])
    before = await world.store.contracts()
    for store in (world.store, await world.another()):
        world.advance("1s")
        await store.save_contracts([contract("b"), contract("a")])
        assert await store.contracts() == before


@behaviour()
async def a_changed_contract_replaces_the_old_one(world: World) -> None:
    """A changed contract replaces the old one of its version and gets a new time, also when it changes back."""
    for takes in ("string", "number", "string"):
        world.advance("1s")
        row = contract("a", takes=takes)
        await world.store.save_contracts([row])
        assert await _found(world, "a") == [("1", row.hash, row.contract, world.clock.now())]


@behaviour()
async def only_changed_contracts_are_written(world: World) -> None:
    """Of several contracts saved together, only the changed ones are written."""
    await world.store.save_contracts([contract(agent) for agent in "abc"])
    first = world.clock.now()
    world.advance("1s")
    await world.store.save_contracts([contract("a"), contract("b", takes="number"), contract("c"), contract("d")])
    times = {row.agent: row.saved for row in await world.store.contracts()}
    assert times == {"a": first, "b": world.clock.now(), "c": first, "d": world.clock.now()}


@behaviour()
async def a_new_version_does_not_change_older_contracts(world: World) -> None:
    """A new version does not change the contracts of older versions."""
    await world.store.save_contracts([contract("a", "1")])
    await world.store.save_contracts([contract("a", "2", takes="number"), contract("b", "1")])
    rows = {(row.agent, row.version): row for row in await world.store.contracts()}
    assert rows.keys() == {("a", "1"), ("a", "2"), ("b", "1")}
    assert rows["a", "1"].contract == contract("a", "1").contract
    assert rows["a", "2"].contract == contract("a", "2", takes="number").contract


@behaviour()
async def contracts_are_ordered_by_agent_time_and_version(world: World) -> None:
    """Contracts are ordered by agent, time of saving and version, so that the last of an agent is the newest."""
    for versions in (("9",), ("2", "10", "1"), ("0",)):
        await world.store.save_contracts([contract(agent, version) for agent in "bäa" for version in versions])
        world.advance("1s")
    expected = [(agent, version) for agent in "abä" for version in ("9", "1", "10", "2", "0")]
    assert [(row.agent, row.version) for row in await world.store.contracts()] == expected
    await world.store.save_contracts([contract("a", "9", takes="number")])
    assert [row.version for row in await world.store.contracts("a")] == ["1", "10", "2", "0", "9"]


@behaviour()
async def contracts_are_found_by_exact_agent_name(world: World) -> None:
    """Agents match exactly, not by prefix, pattern or case; names and versions may be any text."""
    await world.store.save_contracts([contract(name, version) for name in ODD for version in ODD])
    for name in ODD:
        rows = await world.store.contracts(name)
        assert sorted((row.agent, row.version) for row in rows) == sorted((name, version) for version in ODD)
        assert all(row.contract == contract(row.agent, row.version).contract for row in rows)
    rows = await world.store.contracts()
    assert [(row.agent, row.version) for row in rows] == sorted((name, version) for name in ODD for version in ODD)


@behaviour()
async def indexed_text_over_500_bytes_is_refused(world: World) -> None:
    """A name or version of more than 500 bytes is refused before anything is written."""
    long = "ä" * 251
    for wrong in (contract(long), contract("a", long)):
        await expect(InvalidValue, world.store.save_contracts([contract("b"), wrong]))
    assert await world.store.contracts() == []
    row = contract("ä" * 250, "v" * 500)
    await world.store.save_contracts([row])
    assert [(each.agent, each.version) for each in await world.store.contracts("ä" * 250)] == [(row.agent, row.version)]


@behaviour()
async def a_name_that_is_not_valid_text_is_refused(world: World) -> None:
    """A name that is not valid text is refused."""
    for wrong in (contract("a\ud800"), contract("a", "\udfff")):
        await expect(InvalidValue, world.store.save_contracts([contract("b"), wrong]))
    assert await world.store.contracts() == []


@behaviour()
async def of_two_contracts_for_one_version_the_last_is_saved(world: World) -> None:
    """Of two contracts for the same agent and version in one call, the last one is saved."""
    last = contract("a", takes="number")
    await world.store.save_contracts([contract("a"), contract("b"), last])
    assert [(row.agent, row.hash) for row in await world.store.contracts()] == [
        ("a", last.hash),
        ("b", contract("b").hash),
    ]


@behaviour()
async def other_stores_on_the_same_data_see_the_contracts(world: World) -> None:
    """Other stores on the same data see the contracts, whether opened before or after."""
    open_already = await world.another()
    await world.store.save_contracts([contract("a"), contract("a", "2")])
    expected = await world.store.contracts()
    assert len(expected) == 2
    assert await open_already.contracts() == expected
    assert await (await world.another()).contracts("a") == expected


@behaviour("durable")
async def contracts_are_unchanged_after_reopening(world: World) -> None:
    """Contracts are unchanged after closing and opening the store."""
    await world.store.save_contracts([contract("a"), contract("b")])
    before = await world.store.contracts()
    await world.store.reopen()
    assert await world.store.contracts() == before


@behaviour()
async def a_thousand_contracts_can_be_saved_together(world: World) -> None:
    """A thousand contracts can be saved together, and by a hundred callers while others create runs."""
    await world.store.save_contracts([contract(f"a{place:04}") for place in range(1000)])
    saving = (world.store.save_contracts([contract(f"b{place:04}"), contract("c")]) for place in range(100))
    creating = (world.store.create(f"r{place}", created(), actor="test") for place in range(100))
    await asyncio.gather(*saving, *creating)
    found = [row.agent for row in await world.store.contracts()]
    assert found == [f"a{place:04}" for place in range(1000)] + [f"b{place:04}" for place in range(100)] + ["c"]
    assert await world.store.count() == 100


@behaviour()
async def contracts_saved_together_become_visible_together(world: World) -> None:
    """Contracts that are saved together become visible together."""
    finished = asyncio.Event()

    async def save() -> None:
        for place in range(20):
            await world.store.save_contracts([contract(f"a{agent}", takes=f"t{place}") for agent in range(20)])
        finished.set()

    async def look() -> None:
        while not finished.is_set():
            rows = await world.store.contracts()
            assert len(rows) in (0, 20)
            assert len({row.contract.partition(b"takes")[2] for row in rows}) <= 1

    await asyncio.gather(save(), look(), look())


@behaviour()
async def saving_a_contract_writes_no_event(world: World) -> None:
    """Saving a contract writes no event and creates no run."""
    await world.create()
    before = await world.store.feed_end(), await world.log()
    await world.store.save_contracts([contract("a")])
    assert (await world.store.feed_end(), await world.log()) == before
    assert await world.store.count() == 1


@behaviour()
async def contracts_are_unreadable_at_rest_in_an_encrypted_store(world: World) -> None:
    """In an encrypted store, neither a contract nor its hash is readable at rest; the agent's name is."""
    row = contract("a", takes="a secret of the sea")
    await world.store.save_contracts([row])
    with closing(world.harness.backend(world.clock)) as backend:
        backend.open()
        [stored] = backend.contracts("a")
    readable = not world.store.codec.is_private
    assert (b"secret" in stored.contract) is readable
    assert (stored.hash == row.hash) is readable
    assert bool(stored.key_id) is not readable


@behaviour("processes")
async def processes_that_save_the_same_contracts_do_not_deadlock(world: World) -> None:
    """Four processes that save the same contracts in different orders do not deadlock, and each is saved once."""
    assert await world.processes("save_contracts", 4, "100") == ["100"] * 4
    found = [(row.agent, row.hash) for row in await world.store.contracts()]
    assert found == [(f"a{place:03}", contract(f"a{place:03}").hash) for place in range(100)]


async def _found(world: World, agent: str) -> list[tuple[str, str, bytes, int]]:
    rows = await world.store.contracts(agent)
    assert all(row.agent == agent for row in rows)
    return [(row.version, row.hash, row.contract, row.saved) for row in rows]
