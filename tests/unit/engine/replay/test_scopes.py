"""Scopes: the identity of a call is the same in every execution, or the call is refused."""

import pytest

from limpet.engine.replay.scopes import Scope
from limpet.errors import WrongCall

MAIN, OTHER, THIRD = "main", "other", "third"


def test_a_call_is_identified_by_name_and_count() -> None:
    """Each name has its own counter, so that an inserted call does not change the identity of others."""
    scope = Scope("", MAIN)
    assert [scope.take(name, MAIN) for name in ("fetch", "mail", "fetch")] == ["fetch#1", "mail#1", "fetch#2"]


def test_each_scope_has_its_own_counters() -> None:
    scope = Scope("", MAIN)
    inner = scope.enter("refund", MAIN)
    assert (inner.take("pay", MAIN), scope.take("pay", MAIN)) == ("refund/pay#1", "pay#1")
    assert inner.enter("deep", MAIN).take("pay", MAIN) == "refund/deep/pay#1"


def test_a_scope_entered_again_gets_another_name() -> None:
    scope = Scope("", MAIN)
    names = [scope.enter("round", MAIN).take("pay", MAIN) for _ in range(3)]
    assert names == ["round/pay#1", "round#2/pay#1", "round#3/pay#1"]


def test_a_scope_and_a_call_of_one_name_are_counted_separately() -> None:
    scope = Scope("", MAIN)
    assert scope.take("pay", MAIN) == "pay#1"
    assert scope.enter("pay", MAIN).take("x", MAIN) == "pay/x#1"
    assert scope.take("pay", MAIN) == "pay#2"


def test_a_call_from_parallel_code_is_refused() -> None:
    """The first live call is refused, before its order is recorded."""
    scope = Scope("look/", MAIN)
    with pytest.raises(WrongCall) as raised:
        scope.take("fetch", OTHER)
    assert raised.value.reason.startswith("fetch was called from parallel code in look/")
    assert "run.scope" in raised.value.hint
    assert scope.take("fetch", MAIN) == "look/fetch#1"


def test_parallel_code_with_its_own_scope_may_call() -> None:
    scope = Scope("", MAIN)
    left, right = scope.enter("left", OTHER), scope.enter("right", THIRD)
    assert (left.take("pay", OTHER), right.take("pay", THIRD)) == ("left/pay#1", "right/pay#1")
    with pytest.raises(WrongCall):
        left.take("pay", MAIN)


def test_two_tasks_cannot_open_one_scope_name() -> None:
    """The order could differ on replay."""
    scope = Scope("", MAIN)
    scope.enter("branch", OTHER)
    with pytest.raises(WrongCall, match="branch"):
        scope.enter("branch", THIRD)


def test_a_turn_is_a_scope_of_its_loop() -> None:
    scope = Scope("", MAIN)
    loop = scope.take("turns", MAIN)
    assert [scope.turn(loop, number).take("think", MAIN) for number in (1, 2)] == [
        "turns#1/1/think#1",
        "turns#1/2/think#1",
    ]
