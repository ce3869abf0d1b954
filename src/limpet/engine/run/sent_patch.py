"""Patches of a run's working state from outside, which the run applies at its next turn."""

from collections.abc import Mapping
from typing import Any

from limpet.engine.definitions.types import codec_of
from limpet.engine.run.working_state import SentPatch, StateChange
from limpet.errors import InvalidArgument, InvalidPatch, WrongState
from limpet.events import StatePatch
from limpet.journal import load
from limpet.state import RunState
from limpet.state.patch import Working, rebased
from limpet.stores import Store

__all__ = ["patch_to_send"]

SENDABLE = tuple(SentPatch.__annotations__)
# Maximum number of patches that wait for a run's next turn.
MAX_WAITING = 100
_JSON = codec_of(Any)


async def patch_to_send(store: Store, run: str, given: Mapping[str, Any], *, source: str) -> StatePatch:
    """Return a patch for a run, checked against the run's current state. Raises InvalidArgument."""
    state = await load(store, run)
    if len(state.patches) >= MAX_WAITING:
        status, fix = f"not applying its {MAX_WAITING} patches", "Let the agent use `run.turns`: patches apply there."
        raise WrongState(run=run, status=status, wanted="another patch", fix=fix)
    if unknown := sorted(given.keys() - set(SENDABLE)):
        reason = f"cannot be patched from outside; allowed: {', '.join(SENDABLE)}"
        raise InvalidArgument(path=unknown[0], reason=reason)
    working = _after(state)
    change = StateChange(**{"source": source, **{name: value for name, value in given.items() if value is not None}})
    patch = change.patch(_JSON, None, working, store.redaction)
    try:
        working.apply(patch)
    except InvalidPatch as error:
        raise InvalidArgument(path=error.part, reason=error.reason) from error
    if patch == StatePatch():
        raise InvalidArgument(path="patch", reason=f"is empty; pass one of {', '.join(SENDABLE)}")
    return patch


def _after(state: RunState) -> Working:
    """Return the working state as it will be after the patches that wait for the next turn."""
    working = Working(state.working)
    for each in state.patches:
        working.apply(rebased(working, each.patch))
    return working
