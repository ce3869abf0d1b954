"""The decorator `agent`."""

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
    """Return the name if it is valid: the ids of runs contain it."""
    try:
        if len(check_id(name)) <= LONGEST_NAME:
            return name
    except InvalidArgument as error:
        reason = "run ids contain the name; pass name= with only letters, digits and ._:@+=-"
        raise DefinitionError(what=f"agent {name[:50]!r}", reason=reason) from error
    raise DefinitionError(what=f"agent {name[:50]}…", reason=f"the name has more than {LONGEST_NAME} characters")


class _Define(Protocol):
    """Decorator that turns a function into an agent."""

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
    concurrency: int | None = None,
    data: Callable[[], Any] | None = None,
) -> _Define:
    """Return a decorator that turns a function into an agent.

    The function takes its run and at most one input. `name` defaults to the function's name. `version` is the version
    of the code; `accepts` names older versions whose runs this code may execute. `steps` is the expected number of
    steps, for display. `deadline` is the maximum wall-clock time of a run, including waits, and `budget` what it may
    use. `approvals` and `escalate` decide when a person is asked. `checkpoint` sets when the log is written:
    "every_step", "every_iteration" (at the end of each turn) or "on_state_change" (after each patch). `exclusive`
    allows one run per "session" or "user" at a time. `concurrency` limits how many runs of the agent are driven at the
    same time, over all workers; runs that wait do not count. A run that was idle for longer than `max_age` waits for an
    operator. `data` makes `run.state.data` of a run that has none yet; without it, the type S of `Run[S]` is called
    without arguments.
    """
    if concurrency is not None and concurrency < 1:
        raise DefinitionError(what="an agent", reason=f"concurrency must be at least 1, not {concurrency}")
    if bare:
        raise DefinitionError(what="an agent", reason="add parentheses: @limpet.agent()")
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
        concurrency=concurrency,
        data=data,
    )

    def define(fn: Callable[..., Any], /) -> Agent[Any, Any]:
        check_function("an agent", fn, name)
        return Agent(fn, _checked_name(name or fn.__name__), rules)

    return cast("_Define", define)
