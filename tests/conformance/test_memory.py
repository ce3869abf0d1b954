"""The memory store is a store."""

from functools import cache

import pytest

from limpet.stores.conformance import Behaviour, Harness, behaviours
from limpet.stores.memory import MemoryBackend


@pytest.mark.parametrize("behaviour", behaviours(MemoryBackend.capabilities), ids=str)
def test_the_memory_store_behaves(behaviour: Behaviour) -> None:
    """Each behaviour that a store without processes must show."""
    behaviour.run(Harness(backend=cache(MemoryBackend)))
