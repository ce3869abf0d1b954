"""Options of the whole suite."""

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--full` runs the long proofs with all their cases; without it, a slice of each."""
    parser.addoption("--full", action="store_true", help="run the long proofs with all their cases")


@pytest.fixture
def full(request: pytest.FixtureRequest) -> bool:
    """Whether all cases were asked for."""
    return bool(request.config.getoption("--full"))
