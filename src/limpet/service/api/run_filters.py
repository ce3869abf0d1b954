"""Parameters that select runs, for lists and batches."""

from collections.abc import Mapping, Sequence
from typing import Annotated

from limpet.engine.execution.views import Status
from limpet.service.operation import InDoors, Param, Resource, Since

__all__ = [
    "CreatedBefore",
    "CreatedSince",
    "WithLabels",
    "WithParent",
    "WithScore",
    "WithSession",
    "WithStatus",
    "WithText",
    "WithUser",
]

WithStatus = Annotated[
    str | Sequence[str] | None,
    Param(description="Only runs with this status, or one of these.", examples=[["failed"]]),
    InDoors(list[Status]),
]
WithSession = Annotated[str | None, Param(description="Only this session.", examples=["ann-1"])]
WithUser = Annotated[str | None, Param(description="Only this user.", examples=["ann"])]
WithParent = Annotated[
    str | None, Param(description="Only runs that this run called.", examples=["ticket-42"]), Resource("run")
]
WithLabels = Annotated[
    Mapping[str, str] | Sequence[str],
    Param(description="Labels, as NAME=VALUE. All must match.", examples=[["team=sales"]], flag="label"),
    InDoors(list[str]),
]
WithText = Annotated[
    str | None, Param(description="Contained in id, agent, goal or the value of a label.", examples=["refund"])
]
WithScore = Annotated[
    str | None,
    Param(
        description="Only runs with such a score, of the run or a step: quality, quality<0.5, correct=false.",
        examples=["quality<0.5"],
    ),
]
CreatedSince = Annotated[Since, Param(description="Created since then: 7d before now, or a time.")]
CreatedBefore = Annotated[Since, Param(description="Created before then: 1d before now, or a time.")]
