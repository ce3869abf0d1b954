"""The `retry` decorator for plain functions."""

from collections.abc import Callable

import pytest

import limpet
from limpet.clock import SystemClock


class Impatient(SystemClock):
    """A clock that records sleeps and returns immediately."""

    def __init__(self) -> None:
        self.waited: list[float] = []

    async def sleep(self, how_long: int, /) -> None:
        self.waited.append(how_long / 10**6)


def failing(times: int, error: Callable[[int], Exception] = lambda n: ValueError(f"no {n}")) -> Callable[[], int]:
    """Return a function that fails `times` times, and then returns the number of its calls."""
    calls: list[int] = []

    def fn() -> int:
        calls.append(1)
        if len(calls) <= times:
            raise error(len(calls))
        return len(calls)

    return fn


def test_delays_grow_and_the_last_attempt_has_none() -> None:
    """The delays are 1 s, 2 s and 4 s."""
    clock = Impatient()
    assert limpet.retry(failing(0), clock=clock) == 1
    assert clock.waited == []
    assert limpet.retry(failing(3), 4, clock=clock) == 4
    assert clock.waited == [1, 2, 4]


def test_the_last_error_is_raised_with_notes_on_earlier_ones() -> None:
    """Earlier errors are notes, each with its attempt."""
    clock = Impatient()
    with pytest.raises(ValueError, match="no 3") as error:
        limpet.retry(failing(9), clock=clock)
    assert clock.waited == [1, 2]
    assert error.value.__notes__ == ["attempt 1: ValueError('no 1')", "attempt 2: ValueError('no 2')"]


async def test_a_coroutine_function_is_awaited() -> None:
    """This applies behind a lambda, too."""
    clock, fn = Impatient(), failing(2)

    async def later(more: int = 0) -> int:
        return fn() + more

    assert await limpet.retry(later, clock=clock) == 3
    assert clock.waited == [1, 2]
    fn = failing(5)
    with pytest.raises(ValueError, match="no 4") as error:
        await limpet.retry(lambda: later(1), 4, clock=clock)
    assert len(error.value.__notes__) == 3


async def test_blocking_code_can_retry_inside_an_event_loop() -> None:
    clock = Impatient()
    assert limpet.retry(failing(1), clock=clock) == 2
    assert clock.waited == [1]


def test_permanent_and_retry_after_are_respected() -> None:
    """Permanent is not retried, and RetryAfter sets the delay."""
    clock = Impatient()
    with pytest.raises(limpet.Permanent):
        limpet.retry(failing(9, lambda _: limpet.Permanent("gone")), clock=clock)
    assert clock.waited == []
    assert limpet.retry(failing(1, lambda _: limpet.RetryAfter("7s")), clock=clock) == 2
    assert clock.waited == [7]


def test_a_keyboard_interrupt_is_not_retried() -> None:
    clock = Impatient()

    def interrupted() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        limpet.retry(interrupted, clock=clock)
    with pytest.raises(limpet.DefinitionError, match="at least 1"):
        limpet.retry(failing(0), 0, clock=clock)
    assert clock.waited == []


def test_the_system_clock_is_the_default() -> None:
    """It waits for a real second."""
    before = SystemClock().ticks()
    assert limpet.retry(failing(1)) == 2
    assert SystemClock().ticks() - before >= 10**6
