"""Runs the conformance suite on the memory store."""

import threading
from functools import cache
from zlib import crc32

import pytest

from limpet.errors import Unsupported
from limpet.events import START
from limpet.stores import Inline, Store
from limpet.stores.conformance import Behaviour, Harness, behaviours
from limpet.stores.memory import MemoryBackend

ALL = behaviours(MemoryBackend.capabilities)
WITHOUT_THREADS = [each for each in ALL if "thread" not in each.name and each.topic != "payloads"]


@pytest.mark.parametrize("behaviour", ALL, ids=str)
def test_memory_store_conforms(behaviour: Behaviour) -> None:
    """Check each behaviour that a store without processes must have."""
    behaviour.run(Harness(backend=cache(MemoryBackend)))


@pytest.mark.parametrize("behaviour", WITHOUT_THREADS, ids=str)
def test_memory_store_conforms_without_threads(behaviour: Behaviour, full: bool) -> None:
    """Check the same behaviours on the event loop alone, as a simulation runs the store."""
    if not full and crc32(str(behaviour).encode()) % 4:
        pytest.skip("a fourth of them, without --full")
    before = set(threading.enumerate())
    behaviour.run(Harness(backend=cache(MemoryBackend), handover=Inline))
    assert set(threading.enumerate()) <= before


async def test_memory_store_refuses_transactions() -> None:
    """The memory store has no connection that a caller could write on, and never calls the caller's work."""
    async with Store(MemoryBackend()) as store:
        with pytest.raises(Unsupported) as error:
            await store.transact("r1", after=START, fence=1, actor="w1", work=lambda _: pytest.fail("called"))
    assert error.value.what == "transactions"
    assert not MemoryBackend.capabilities.have("transactions")
