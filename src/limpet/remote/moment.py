"""The state of a run, as a server sent it."""

from collections.abc import Mapping
from typing import Any, cast

from limpet.context.brief import Chosen
from limpet.engine.run.working_state import State
from limpet.errors import NotRemote
from limpet.service.moments import JSON, Moment, MomentJson
from limpet.service.page import Page
from limpet.service.steps import FailureInfo
from limpet.state import RunState, Status

__all__ = ["RemoteMoment"]


class RemoteMoment(Moment):
    """A state of a run that is made of its JSON. Only `whole`, what the log folds to, is not there."""

    def __init__(self, shown: MomentJson) -> None:
        State.__init__(self, shown["state"], JSON)
        self._shown = shown
        self.run, self.seq, self.time = shown["run"], shown["seq"], shown["time"]
        self.status = cast("Status", shown["status"])
        self.step, self.position, self.input = shown["step"], shown["position"], shown["input"]
        self.open_steps = shown["open_steps"]
        self.steps = Page(shown["steps"]["items"], shown["steps"]["next"])

    @property
    def whole(self) -> RunState:
        """Not available: the server sends only its public parts."""
        raise NotRemote(what="`whole`, the state that a log folds to")

    @property
    def decisions(self) -> tuple[Chosen, ...]:
        """The last decisions, the newest last."""
        return tuple(self._shown["decisions"])

    @property
    def failure(self) -> FailureInfo | None:
        """Why the run failed; while it runs, its last error."""
        return self._shown["failure"]

    @property
    def failure_step(self) -> int | None:
        """The step of that error."""
        return self._shown["failure_step"]

    @property
    def spent(self) -> Mapping[str, float]:
        """Usage so far: steps, tokens, cost, and seconds of work."""
        return self._shown["spent"]

    @property
    def next(self) -> str | None:
        """The current item of the plan, or the next one."""
        return self._shown["next"]

    def as_json(self) -> Any:
        """Return the state as plain data, under its public names."""
        return self._shown

    def __str__(self) -> str:
        return self._shown["text"]
