"""Making a function an agent."""

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Never, Protocol, TypeVar, cast, overload

from limpet.arguments import defining
from limpet.clock import Duration, microseconds
from limpet.engine.definitions.agents import Agent, AgentOptions, Budget, Exclusive
from limpet.engine.definitions.tools import check_function
from limpet.engine.run.blocking import BlockingRun
from limpet.engine.run.run import Run
from limpet.errors import DefinitionError, InvalidArgument
from limpet.ids import check_id
from limpet.policy.checkpoint import Strategy
from limpet.policy.escalation import Escalate
from limpet.policy.risk import Approvals

__all__ = ["agent"]

In = TypeVar("In")
Out = TypeVar("Out")
S = TypeVar("S")
LONGEST_NAME = 100


def _checked_name(name: str) -> str:
    """A name that runs can be called after."""
    try:
        if len(check_id(name)) <= LONGEST_NAME:
            return name
    except InvalidArgument as error:
        reason = "its runs are named after it: say name= with letters, digits and ._:@+=- only"
        raise DefinitionError(what=f"The agent {name[:50]!r}", reason=reason) from error
    raise DefinitionError(what=f"The agent {name[:50]}…", reason=f"its name has more than {LONGEST_NAME} characters")


class _Define(Protocol):
    """What makes a function an agent."""

    @overload
    def __call__(self, fn: Callable[[Run[S], In], Coroutine[Any, Any, Out]], /) -> Agent[In, Out]: ...

    @overload
    def __call__(self, fn: Callable[[Run[S]], Coroutine[Any, Any, Out]], /) -> Agent[None, Out]: ...

    @overload
    def __call__(self, fn: Callable[[BlockingRun[S], In], Out], /) -> Agent[In, Out]: ...

    @overload
    def __call__(self, fn: Callable[[BlockingRun[S]], Out], /) -> Agent[None, Out]: ...


@defining
def agent(  # noqa: PLR0913 - all by name, and few at a time
    *bare: Never,
    name: str | None = None,
    version: str = "1",
    accepts: Sequence[str] = (),
    steps: int | None = None,
    deadline: Duration | None = None,
    budget: Budget | None = None,
    approvals: Approvals | None = None,
    escalate: Escalate | None = None,
    checkpoint: Strategy = "every_step",
    exclusive: Exclusive | None = None,
    max_age: Duration | None = None,
) -> _Define:
    """Make a function an agent. `accepts` names older versions whose runs this code may take over."""
    if bare:
        raise DefinitionError(what="An agent", reason="put parentheses behind the decorator: @limpet.agent()")
    rules = AgentOptions(
        version=version,
        accepts=tuple(accepts),
        steps=steps,
        deadline=None if deadline is None else microseconds(deadline),
        budget=None if budget is None else budget.limits,
        approvals=approvals,
        escalate=escalate,
        checkpoint=checkpoint,
        exclusive=exclusive,
        max_age=None if max_age is None else microseconds(max_age),
    )

    def define(fn: Callable[..., Any], /) -> Agent[Any, Any]:
        check_function("An agent", fn, name)
        return Agent(fn, _checked_name(name or fn.__name__), rules)

    return cast("_Define", define)
