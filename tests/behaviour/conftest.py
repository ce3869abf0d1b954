"""Agents in memory, a clock that stands still; tools of one test are not known to the next."""

from collections.abc import Iterator

import pytest

from limpet.engine.definitions import tools


@pytest.fixture(autouse=True)
def own_tools() -> Iterator[None]:
    """Tools are registered by name in the process: each test has its own."""
    before = dict(tools._tools)
    tools._tools.clear()
    yield
    tools._tools.clear()
    tools._tools.update(before)
