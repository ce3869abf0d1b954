"""The PostgreSQL store is a store."""

import pytest

from limpet.stores.conformance import Behaviour, Harness, behaviours
from limpet.stores.postgres import PostgresBackend


@pytest.mark.parametrize("behaviour", behaviours(PostgresBackend.capabilities), ids=str)
def test_the_postgres_store_behaves(behaviour: Behaviour, postgres_schema: str) -> None:
    """Each behaviour, in a schema of its own."""
    behaviour.run(
        Harness(
            backend=lambda clock: PostgresBackend(postgres_schema, clock),
            child=("limpet.stores.postgres:PostgresBackend", postgres_schema),
        )
    )
