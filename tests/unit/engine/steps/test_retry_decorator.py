"""The plain helper that tries a function again."""

from collections.abc import Callable

import pytest

import limpet
from limpet.clock import SystemClock


class Impatient(SystemClock):
    """A clock that only counts how long it was to wait."""

    def __init__(self) -> None:
        self.waited: list[float] = []

    async def sleep(self, how_long: int, /) -> None:
        self.waited.append(how_long / 10**6)


def failing(times: int, error: Callable[[int], Exception] = lambda n: ValueError(f"no {n}")) -> Callable[[], int]:
    """A function that goes wrong so many times, and then says how often it was called."""
    calls: list[int] = []

    def fn() -> int:
        calls.append(1)
        if len(calls) <= times:
            raise error(len(calls))
        return len(calls)

    return fn


def test_it_waits_longer_each_time_and_not_after_the_last() -> None:
    """1 s, 2 s, 4 s."""
    clock = Impatient()
    assert limpet.retry(failing(0), clock=clock) == 1
    assert clock.waited == []
    assert limpet.retry(failing(3), 4, clock=clock) == 4
    assert clock.waited == [1, 2, 4]


def test_the_last_error_is_raised_with_those_before_it() -> None:
    """As notes, each with its attempt."""
    clock = Impatient()
    with pytest.raises(ValueError, match="no 3") as error:
        limpet.retry(failing(9), clock=clock)
    assert clock.waited == [1, 2]
    assert error.value.__notes__ == ["attempt 1: ValueError('no 1')", "attempt 2: ValueError('no 2')"]


async def test_a_coroutine_function_is_awaited() -> None:
    """Also behind a lambda."""
    clock, fn = Impatient(), failing(2)

    async def later(more: int = 0) -> int:
        return fn() + more

    assert await limpet.retry(later, clock=clock) == 3
    assert clock.waited == [1, 2]
    fn = failing(5)
    with pytest.raises(ValueError, match="no 4") as error:
        await limpet.retry(lambda: later(1), 4, clock=clock)
    assert len(error.value.__notes__) == 3


async def test_blocking_code_may_retry_beside_an_event_loop() -> None:
    """It blocks, as it says."""
    clock = Impatient()
    assert limpet.retry(failing(1), clock=clock) == 2
    assert clock.waited == [1]


def test_tools_own_errors_are_understood() -> None:
    """No retry helps, or not before a time."""
    clock = Impatient()
    with pytest.raises(limpet.Permanent):
        limpet.retry(failing(9, lambda _: limpet.Permanent("gone")), clock=clock)
    assert clock.waited == []
    assert limpet.retry(failing(1, lambda _: limpet.RetryAfter("7s")), clock=clock) == 2
    assert clock.waited == [7]


def test_what_is_no_error_is_not_retried() -> None:
    """An interrupt goes through."""
    clock = Impatient()

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        limpet.retry(interrupted, clock=clock)
    with pytest.raises(limpet.DefinitionError, match="at least 1"):
        limpet.retry(failing(0), 0, clock=clock)
    assert clock.waited == []


def test_the_machines_clock_is_the_default() -> None:
    """It really waits: a second."""
    before = SystemClock().ticks()
    assert limpet.retry(failing(1)) == 2
    assert SystemClock().ticks() - before >= 10**6
