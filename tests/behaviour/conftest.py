"""Fixtures for behaviour tests: agents run in memory, on a clock that only tests advance."""

from collections.abc import Iterator

import pytest

from limpet.engine.definitions import tools


@pytest.fixture(autouse=True)
def own_tools() -> Iterator[None]:
    """Give each test its own registry of tools, which is global in the process."""
    before = dict(tools._tools)
    tools._tools.clear()
    yield
    tools._tools.clear()
    tools._tools.update(before)
