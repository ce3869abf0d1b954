"""Ids are checked strictly, sort by time, and can be generated from a seed."""

import pytest

from limpet.clock import FrozenClock
from limpet.errors import InvalidArgument
from limpet.ids import RandomIds, SeededIds, check_id


@pytest.mark.parametrize(
    "id",
    ["a", "Z", "0", "ticket-42", "a" * 200, "run.1", "run.helper-3", "a._:@+=-", "1:step_2:refund:0123456789abcdef"],
)
def test_an_id_can_contain_letters_digits_and_some_punctuation(id: str) -> None:
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
def test_ids_with_other_characters_are_refused(id: object) -> None:
    """Characters with a meaning in paths, file names or queries are refused."""
    with pytest.raises(InvalidArgument):
        check_id(id)


def test_the_error_shows_only_the_start_of_a_long_id() -> None:
    """The error of a very long id stays short."""
    with pytest.raises(InvalidArgument) as caught:
        check_id("a" * 10**6)
    assert caught.value.reason == repr("a" * 300)


def test_a_random_id_is_valid() -> None:
    """A random id has 26 valid characters."""
    new = RandomIds(FrozenClock()).new()
    assert (check_id(new), len(new)) == (new, 26)


def test_random_ids_differ_within_one_instant() -> None:
    """80 random bits distinguish ids of the same millisecond."""
    ids = RandomIds(FrozenClock())
    assert len({ids.new() for _ in range(1000)}) == 1000


def test_random_ids_sort_by_time() -> None:
    clock = FrozenClock()
    ids, made = RandomIds(clock), list[str]()
    for _ in range(100):
        made.append(ids.new())
        clock.advance("1ms")
    assert sorted(made) == made


def test_random_ids_keep_their_length_in_the_far_future() -> None:
    """48 bits of milliseconds last until the year 10889."""
    last_time = (2**48 - 1) * 1000
    new = RandomIds(FrozenClock(last_time)).new()
    assert (len(new), new[:10]) == (26, "7zzzzzzzzz")


def test_the_same_seed_gives_the_same_ids() -> None:
    first, again = SeededIds(3), SeededIds(3)
    assert [first.new() for _ in range(10)] == [again.new() for _ in range(10)]


def test_another_seed_gives_other_ids() -> None:
    assert SeededIds(1).new() != SeededIds(2).new()


def test_seeded_ids_never_change() -> None:
    """Recorded simulations stay valid."""
    ids = SeededIds()
    assert [ids.new(), ids.new()] == ["0000000001r84p57vfqvc2r1yd", "000000000219epqammaqhye1m2"]


def test_seeded_ids_sort_in_order_of_creation() -> None:
    """Logs under seeded ids are in order."""
    ids = SeededIds()
    made = [ids.new() for _ in range(100)]
    assert sorted(made) == made
