"""The memory store is a store."""

from functools import cache
from threading import active_count

import pytest

from limpet.stores import Inline
from limpet.stores.conformance import Behaviour, Harness, behaviours
from limpet.stores.memory import MemoryBackend

ALL = behaviours(MemoryBackend.capabilities)
WITHOUT_THREADS = [each for each in ALL if "thread" not in each.name and each.topic != "payloads"]


@pytest.mark.parametrize("behaviour", ALL, ids=str)
def test_the_memory_store_behaves(behaviour: Behaviour) -> None:
    """Each behaviour that a store without processes must show."""
    behaviour.run(Harness(backend=cache(MemoryBackend)))


@pytest.mark.parametrize("behaviour", WITHOUT_THREADS, ids=str)
def test_the_memory_store_behaves_without_any_thread(behaviour: Behaviour) -> None:
    """The same on the event loop alone, as a simulation runs it."""
    before = active_count()
    behaviour.run(Harness(backend=cache(MemoryBackend), handover=Inline))
    assert active_count() == before
