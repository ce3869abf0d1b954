"""Decide whether a run can afford its next step."""

from collections.abc import Iterable, Iterator
from typing import TypeVar

from msgspec import Struct

from limpet.events import Limits, Spent

__all__ = ["Exhausted", "Fits", "decide", "remaining", "slice_of"]

PRESSURE = 0.8
Number = TypeVar("Number", int, float)


class Fits(Struct, frozen=True):
    """The step is within the budget; `pressure` names the limits that are used to 80 % or more."""

    pressure: tuple[str, ...] = ()


class Exhausted(Struct, frozen=True):
    """The step would exceed this limit."""

    limit: str
    allowed: float
    wanted: float
    """Usage after the next step."""
    then: str
    """`fail` the run, or `ask` a person to extend the budget."""


def decide(limits: Limits, spent: Spent, reserve: Spent = Spent()) -> Fits | Exhausted:  # noqa: B008 - frozen
    """Decide whether `reserve` still fits into the limits, given the usage so far."""
    pressure = []
    for name, allowed, used, wanted in _rows(limits, spent, reserve):
        if used + wanted > allowed or (wanted == 0 and used >= allowed):
            return Exhausted(limit=name, allowed=allowed, wanted=used + wanted, then=limits.exhausted)
        if used + wanted >= allowed * PRESSURE:
            pressure.append(name)
    return Fits(tuple(pressure))


def remaining(limits: Limits, spent: Spent, lent: Iterable[Limits] = ()) -> Limits:
    """Return what is left of a budget. `lent` has the budgets of called runs that have not returned; they are
    subtracted.
    """
    left = {name: max(allowed - used, 0) for name, allowed, used, _ in _rows(limits, spent, Spent())}
    for part in lent:
        for name, _, _, gone in _rows(limits, spent, part.most()):
            left[name] = max(left[name] - gone, 0)
    return Limits(
        max_steps=_whole(left.get("max_steps")),
        max_wall_time_ms=_whole(left.get("max_wall_time_ms")),
        max_llm_tokens=_whole(left.get("max_llm_tokens")),
        max_cost=left.get("max_cost"),
        max_artifact_bytes_in_context=limits.max_artifact_bytes_in_context,
        exhausted=limits.exhausted,
    )


def slice_of(left: Limits, wanted: Limits | None) -> Limits:
    """Return a child's share: what was requested, but never more than is left."""
    if wanted is None:
        return left
    return Limits(
        max_steps=_least(left.max_steps, wanted.max_steps),
        max_wall_time_ms=_least(left.max_wall_time_ms, wanted.max_wall_time_ms),
        max_llm_tokens=_least(left.max_llm_tokens, wanted.max_llm_tokens),
        max_cost=_least(left.max_cost, wanted.max_cost),
        max_artifact_bytes_in_context=_least(left.max_artifact_bytes_in_context, wanted.max_artifact_bytes_in_context),
        exhausted=wanted.exhausted,
    )


def _rows(limits: Limits, spent: Spent, reserve: Spent) -> Iterator[tuple[str, float, float, float]]:
    table = (
        ("max_steps", limits.max_steps, spent.steps, reserve.steps),
        ("max_wall_time_ms", limits.max_wall_time_ms, spent.wall_us / 1000, reserve.wall_us / 1000),
        ("max_llm_tokens", limits.max_llm_tokens, spent.tokens, reserve.tokens),
        ("max_cost", limits.max_cost, spent.cost, reserve.cost),
    )
    for name, allowed, used, wanted in table:
        if allowed is not None:
            yield name, allowed, used, wanted


def _whole(number: float | None) -> int | None:
    return None if number is None else int(number)


def _least(a: Number | None, b: Number | None) -> Number | None:
    return min((each for each in (a, b) if each is not None), default=None)
