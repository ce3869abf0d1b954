"""Which recorded calls come before a recorded result returns."""

from limpet.engine.replay.call_order import CallOrder
from limpet.engine.replay.history import Record
from limpet.events import bodies as b


def order(**calls: tuple[int, int | None]) -> CallOrder:
    """Return the order of calls, given by the letter of their scope and a number, with their start and end."""
    return CallOrder(
        [
            Record(
                name=f"{name[0]}/x#{name[1:]}" if name[0] != "m" else f"x#{name[1:]}",
                opened=b.WaitOpened(name=name, signal="x"),
                seq=seq,
                end=end,
            )
            for name, (seq, end) in calls.items()
        ]
    )


def test_sequential_code_is_never_early() -> None:
    """There is nothing to look up."""
    calls = order(m1=(1, 2), m2=(3, 4))
    assert not calls.has_branches
    assert not calls.is_early(2)


def test_a_result_waits_for_the_first_calls_of_other_branches() -> None:
    """They were made before the branch made its next call."""
    calls = order(a1=(1, 2), b1=(3, 4), c1=(5, 6), a2=(7, 8))
    calls.note_made(1)
    assert calls.is_early(2)
    calls.note_made(5)
    assert calls.is_early(2)
    calls.note_made(3)
    assert not calls.is_early(2)


def test_a_result_without_a_next_call_waits_for_the_calls_after_it() -> None:
    """The log ends before its branch goes on."""
    calls = order(a1=(1, 2), b1=(3, None))
    calls.note_made(1)
    assert calls.is_early(2)
    calls.note_made(3)
    assert not calls.is_early(2)


def test_a_result_does_not_wait_for_calls_that_come_after_later_results() -> None:
    """The other branch makes its second call when it has got its first result, which returns after this one."""
    calls = order(a1=(1, 3), b1=(2, 4), b2=(5, 7), a2=(6, 8))
    calls.note_made(1)
    calls.note_made(2)
    assert not calls.is_early(3)
    assert not calls.is_early(4)  # the other branch made its next call later


def test_a_result_outside_does_not_wait_for_branches_that_begin_after_it() -> None:
    """The code around them may begin them because of this result; but it waits for those that have had a result."""
    calls = order(m1=(1, 2), a1=(3, 4), m2=(5, 8), a2=(6, 9), m3=(10, 11))
    calls.note_made(1)
    assert not calls.is_early(2)
    calls.note_made(3)
    calls.note_made(5)
    assert calls.is_early(8)
    calls.note_made(6)
    assert not calls.is_early(8)


def test_a_result_waits_for_every_call_that_was_recorded_before_it_until_it_is_given_up() -> None:
    """Also for the first call of a branch inside; code that was changed may never make it."""
    calls = order(m1=(1, 3), a1=(2, 6), m2=(4, 5))
    calls.note_made(1)
    assert calls.is_early(3)
    calls.give_up(3)
    assert not calls.is_early(3)
    calls.note_made(4)
    assert not calls.is_early(5)
