"""The conformance suite: behaviours that every store must have. It is the only definition of a store.

A test file for a new store is ten lines:

    import pytest
    from limpet.stores.conformance import Harness, behaviours

    @pytest.mark.parametrize("behaviour", behaviours(MyBackend.capabilities), ids=str)
    def test_my_store(behaviour, tmp_path):
        path = str(tmp_path / "my.db")
        behaviour.run(Harness(backend=lambda clock: MyBackend(path, clock), child=("my.module:MyBackend", path)))

Behaviours that need a capability that the store does not declare are omitted; capabilities are never guessed.
"""

from limpet.stores.backend import Capabilities
from limpet.stores.conformance import (
    append,
    audit,
    blobs,
    claim,
    clocks,
    commands,
    concurrency,
    contracts,
    conversations,
    create,
    duties,
    engines,
    expiry,
    feed,
    fences,
    forks,
    lists,
    payloads,
    prune,
    reads,
    rebuild,
    records,
    requests,
    scores,
    snapshots,
    steps,
    tokens,
    transactions,
    unknown_events,
    watch,
)
from limpet.stores.conformance.suite import BEHAVIOURS, Behaviour, Harness, World

__all__ = ["TOPICS", "Behaviour", "Harness", "World", "behaviours"]

if not __debug__:
    raise RuntimeError("the conformance suite is made of asserts: run it without -O")

TOPICS = (
    create,
    append,
    fences,
    commands,
    requests,
    scores,
    claim,
    expiry,
    duties,
    engines,
    tokens,
    reads,
    steps,
    lists,
    snapshots,
    contracts,
    conversations,
    audit,
    watch,
    concurrency,
    payloads,
    clocks,
    unknown_events,
    blobs,
    transactions,
    feed,
    rebuild,
    records,
    forks,
    prune,
)


def behaviours(capabilities: Capabilities | None = None) -> list[Behaviour]:
    """Return all behaviours, or those that a store with these capabilities must have."""
    if capabilities is None:
        return list(BEHAVIOURS)
    return [each for each in BEHAVIOURS if all(map(capabilities.have, each.needs))]
