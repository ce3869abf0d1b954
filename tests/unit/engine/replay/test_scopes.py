"""Who a call is: the same in every execution, or refused."""

import pytest

from limpet.engine.replay.scopes import Scope
from limpet.errors import WrongCall

MAIN, OTHER, THIRD = "main", "other", "third"


def test_a_call_is_known_by_its_name_and_how_often_it_came() -> None:
    """Names are counted apart: an inserted call of another name moves nobody."""
    scope = Scope("", MAIN)
    assert [scope.take(name, MAIN) for name in ("fetch", "mail", "fetch")] == ["fetch#1", "mail#1", "fetch#2"]


def test_a_scope_counts_for_itself() -> None:
    """What happens in one scope does not move the calls of another."""
    scope = Scope("", MAIN)
    inner = scope.enter("refund", MAIN)
    assert (inner.take("pay", MAIN), scope.take("pay", MAIN)) == ("refund/pay#1", "pay#1")
    assert inner.enter("deep", MAIN).take("pay", MAIN) == "refund/deep/pay#1"


def test_a_scope_that_is_entered_again_is_another_place() -> None:
    """A loop over a scope does not mix its rounds."""
    scope = Scope("", MAIN)
    names = [scope.enter("round", MAIN).take("pay", MAIN) for _ in range(3)]
    assert names == ["round/pay#1", "round#2/pay#1", "round#3/pay#1"]


def test_a_scope_and_a_call_of_one_name_are_not_mixed() -> None:
    """Each is counted apart."""
    scope = Scope("", MAIN)
    assert scope.take("pay", MAIN) == "pay#1"
    assert scope.enter("pay", MAIN).take("x", MAIN) == "pay/x#1"
    assert scope.take("pay", MAIN) == "pay#2"


def test_another_strand_is_refused_at_once() -> None:
    """Live, the first time, before anything could be recorded in an order that does not come again."""
    scope = Scope("look/", MAIN)
    with pytest.raises(WrongCall) as raised:
        scope.take("fetch", OTHER)
    assert raised.value.reason.startswith("fetch was called from parallel code in look/")
    assert "run.scope" in raised.value.hint
    assert scope.take("fetch", MAIN) == "look/fetch#1"


def test_a_strand_that_opens_its_own_scope_may_call() -> None:
    """That is the cure."""
    scope = Scope("", MAIN)
    left, right = scope.enter("left", OTHER), scope.enter("right", THIRD)
    assert (left.take("pay", OTHER), right.take("pay", THIRD)) == ("left/pay#1", "right/pay#1")
    with pytest.raises(WrongCall):
        left.take("pay", MAIN)


def test_two_strands_cannot_open_one_name() -> None:
    """Which was first would not come again."""
    scope = Scope("", MAIN)
    scope.enter("branch", OTHER)
    with pytest.raises(WrongCall, match="branch"):
        scope.enter("branch", THIRD)


def test_a_turn_is_a_scope_under_its_loop() -> None:
    """Calls of two turns are different calls."""
    scope = Scope("", MAIN)
    loop = scope.take("turns", MAIN)
    assert [scope.turn(loop, number).take("think", MAIN) for number in (1, 2)] == [
        "turns#1/1/think#1",
        "turns#1/2/think#1",
    ]
