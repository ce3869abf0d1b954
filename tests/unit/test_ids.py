"""Ids are checked strictly, sort by time, and can be had in the same order again."""

import pytest

from limpet.clock import FrozenClock
from limpet.errors import InvalidArgument
from limpet.ids import RandomIds, SeededIds, check_id


@pytest.mark.parametrize(
    "id",
    ["a", "Z", "0", "ticket-42", "a" * 200, "run.1", "run.helper-3", "a._:@+=-", "1:step_2:refund:0123456789abcdef"],
)
def test_an_id_may_hold_letters_digits_and_some_marks(id: str) -> None:
    """The id itself comes back."""
    assert check_id(id) == id


@pytest.mark.parametrize(
    "id",
    [
        "",
        "a" * 201,
        ".a",
        "-a",
        "_a",
        "@a",
        "a b",
        "a/b",
        "a\n",
        "\na",
        "a\x00",
        "ä",
        "aé",
        "a٣",
        "a,b",
        "a#1",
        "a{}",
        None,
        7,
        b"a",
    ],
)
def test_other_ids_are_refused(id: object) -> None:
    """Whatever could be mistaken in a path, a file name or a query is no id."""
    with pytest.raises(InvalidArgument):
        check_id(id)


def test_a_refused_id_is_shown_at_most_in_part() -> None:
    """A megabyte given as an id does not become a megabyte of message."""
    with pytest.raises(InvalidArgument) as caught:
        check_id("a" * 10**6)
    assert caught.value.reason == repr("a" * 300)


def test_a_random_id_is_an_id() -> None:
    """26 characters, all of them allowed."""
    new = RandomIds(FrozenClock()).new()
    assert (check_id(new), len(new)) == (new, 26)


def test_random_ids_differ_within_one_instant() -> None:
    """80 random bits keep two ids of the same millisecond apart."""
    ids = RandomIds(FrozenClock())
    assert len({ids.new() for _ in range(1000)}) == 1000


def test_random_ids_sort_by_time() -> None:
    """An id of a later millisecond sorts after one of an earlier."""
    clock = FrozenClock()
    ids, made = RandomIds(clock), list[str]()
    for _ in range(100):
        made.append(ids.new())
        clock.advance("1ms")
    assert sorted(made) == made


def test_random_ids_keep_their_length_for_ages() -> None:
    """48 bits of milliseconds last until the year 10889."""
    last_time = (2**48 - 1) * 1000
    new = RandomIds(FrozenClock(last_time)).new()
    assert (len(new), new[:10]) == (26, "7zzzzzzzzz")


def test_seeded_ids_are_the_same_again() -> None:
    """The same seed gives the same ids in the same order."""
    first, again = SeededIds(3), SeededIds(3)
    assert [first.new() for _ in range(10)] == [again.new() for _ in range(10)]


def test_seeds_differ() -> None:
    """Another seed gives other ids."""
    assert SeededIds(1).new() != SeededIds(2).new()


def test_seeded_ids_are_frozen() -> None:
    """What a simulation has recorded under a seed stays true."""
    ids = SeededIds()
    assert [ids.new(), ids.new()] == ["0000000001r84p57vfqvc2r1yd", "000000000219epqammaqhye1m2"]


def test_seeded_ids_sort_in_the_order_they_were_made() -> None:
    """So that logs written under them read in order."""
    ids = SeededIds()
    made = [ids.new() for _ in range(100)]
    assert sorted(made) == made
