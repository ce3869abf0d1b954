"""Durations are parsed strictly, and the frozen clock wakes sleepers that are due."""

import asyncio
from datetime import UTC, datetime, timedelta, timezone

import pytest

from limpet.clock import SECOND, Duration, FrozenClock, SystemClock, earliest, microseconds, to_microseconds
from limpet.errors import InvalidArgument

THOUSAND_YEARS = 10**6 * 86400 * 366 * 1000


async def others_have_run() -> None:
    """Return when everything that was ready before has run."""
    turn = asyncio.Event()
    asyncio.get_running_loop().call_soon(turn.set)
    await turn.wait()


@pytest.mark.parametrize(
    ("duration", "expected"),
    [
        ("1us", 1),
        ("500ms", 500_000),
        ("10s", 10_000_000),
        ("3m", 180_000_000),
        ("2h", 7_200_000_000),
        ("3d", 259_200_000_000),
        ("1w", 604_800_000_000),
        ("0s", 0),
        ("1.5s", 1_500_000),
        ("0.25ms", 250),
        (" 10s\n", 10_000_000),
        (0, 0),
        (2, 2_000_000),
        (0.5, 500_000),
        (1e-7, 0),
        (timedelta(days=1, microseconds=1), 86_400_000_001),
        (timedelta(0), 0),
        (timedelta(microseconds=THOUSAND_YEARS), THOUSAND_YEARS),
    ],
)
def test_a_duration_is_read_as_whole_microseconds(duration: Duration, expected: int) -> None:
    """Text with a unit, seconds as a number, and timedeltas are accepted."""
    assert microseconds(duration) == expected


@pytest.mark.parametrize(
    "duration",
    [
        "",
        "10",
        "s",
        "10 s",
        "-1s",
        "+1s",
        "1e3s",
        ".5s",
        "1.s",
        "1h30m",
        "10S",
        "10y",
        "1_0s",
        "٣s",
        "inf s",
        "1000000w",
        "9" * 400 + "s",
        -1,
        -0.001,
        float("nan"),
        float("inf"),
        float("-inf"),
        1e300,
        10**400,
        True,
        False,
        timedelta(microseconds=-1),
        timedelta(microseconds=THOUSAND_YEARS + 1),
    ],
)
def test_an_invalid_duration_is_refused(duration: Duration) -> None:
    """Durations that are negative, not finite, without a unit or longer than a thousand years are refused."""
    with pytest.raises(InvalidArgument):
        microseconds(duration)


def test_the_error_shows_the_invalid_duration() -> None:
    with pytest.raises(InvalidArgument) as caught:
        microseconds("soon")
    assert caught.value.reason == "'soon'"


def test_a_time_without_a_time_zone_is_refused() -> None:
    """Times are exact to the microsecond, also late ones."""
    late = datetime(2999, 12, 31, 23, 59, 59, 999_999, timezone(timedelta(hours=-5)))
    assert to_microseconds(late, "at") == int(late.replace(microsecond=0).timestamp()) * SECOND + 999_999
    assert to_microseconds(datetime(1970, 1, 1, tzinfo=UTC), "at") == 0
    with pytest.raises(InvalidArgument, match="no time zone"):
        to_microseconds(datetime(2026, 1, 1), "at")  # noqa: DTZ001 - this is refused


def test_the_system_clock_counts_microseconds_since_1970() -> None:
    """The number has sixteen digits from 2001 to 2286."""
    assert len(str(SystemClock().now())) == 16


async def test_the_system_clock_can_sleep_for_zero_seconds() -> None:
    await SystemClock().sleep(0)


def test_a_frozen_clock_does_not_move() -> None:
    clock = FrozenClock(5)
    assert (clock.now(), clock.now()) == (5, 5)


def test_a_frozen_clock_advances_by_a_duration() -> None:
    """Every form of duration is accepted."""
    clock = FrozenClock(5)
    clock.advance("1ms")
    clock.advance(timedelta(microseconds=2))
    assert clock.now() == 1007


def test_a_frozen_clock_can_be_set_back() -> None:
    """The clocks of machines can jump."""
    clock = FrozenClock(5)
    clock.set(3)
    assert clock.now() == 3


async def test_a_frozen_clock_does_not_block_for_zero_seconds() -> None:
    """A sleep of zero or less returns immediately."""
    await FrozenClock().sleep(0)
    await FrozenClock().sleep(-1)


async def test_sleepers_wake_in_the_order_of_their_times() -> None:
    """A jump over several wake-up times wakes the earliest first, and equal ones in the order of their sleeps."""
    clock, woken = FrozenClock(), list[str]()

    async def sleeper(name: str, how_long: int) -> None:
        await clock.sleep(how_long)
        woken.append(name)

    async with asyncio.TaskGroup() as tasks:
        for name, how_long in [("late", 30), ("early", 10), ("middle", 20), ("early too", 10)]:
            tasks.create_task(sleeper(name, how_long))
        await others_have_run()
        clock.advance(timedelta(microseconds=30))
    assert woken == ["early", "early too", "middle", "late"]


@pytest.mark.parametrize("how_long", [1, 10])
async def test_a_sleeper_that_is_not_due_keeps_sleeping(how_long: int) -> None:
    clock = FrozenClock()
    sleeping = asyncio.create_task(clock.sleep(how_long))
    await others_have_run()
    clock.advance(timedelta(microseconds=how_long - 1))
    await others_have_run()
    assert not sleeping.done()
    clock.advance(timedelta(microseconds=1))
    await sleeping


async def test_a_cancelled_sleeper_is_skipped() -> None:
    clock = FrozenClock()
    gone, here = asyncio.create_task(clock.sleep(10)), asyncio.create_task(clock.sleep(10))
    await others_have_run()
    gone.cancel()
    await others_have_run()
    clock.advance(1)
    await here
    assert gone.cancelled()


@pytest.mark.parametrize(
    ("times", "expected"), [((), None), ((None,), None), ((5,), 5), ((None, 7, 5, None), 5), ((0, 1), 0)]
)
def test_the_earliest_time_is_chosen(times: tuple[int | None, ...], expected: int | None) -> None:
    """The times are timers, expiries and the deadline of a run; without any, only a command wakes it."""
    assert earliest(*times) == expected
