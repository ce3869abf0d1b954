"""Patches of a run's working state from outside, which the run applies at its next turn."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from limpet.engine.definitions.types import codec_of
from limpet.engine.run.patch_conflicts import changed_parts, touched_parts
from limpet.engine.run.working_state import SentPatch, StateChange
from limpet.errors import InvalidArgument, InvalidPatch, PatchOutdated, WrongState
from limpet.events import StatePatch
from limpet.journal import load
from limpet.state import RunState
from limpet.state.patch import Working, rebased
from limpet.stores import Store

__all__ = ["PatchToSend", "patch_to_send"]

SENDABLE = tuple(SentPatch.__annotations__)
# Maximum number of patches that wait for a run's next turn.
MAX_WAITING = 100
_JSON = codec_of(Any)


class PatchToSend(NamedTuple):
    """A checked patch, and the position of the log at which it was checked."""

    patch: StatePatch
    seq: int


async def patch_to_send(
    store: Store, run: str, given: Mapping[str, Any], *, source: str, read_at: int | None = None
) -> PatchToSend:
    """Return a patch for a run, checked against the run's current state. Raises InvalidArgument.

    `read_at` is the event at which the sender read the state. Raises PatchOutdated if the run, or a patch that it will
    apply first, has changed since what this patch touches.
    """
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
    if read_at is not None:
        await _check_current(store, state, patch, read_at)
    return PatchToSend(patch, state.position.seq)


async def _check_current(store: Store, state: RunState, patch: StatePatch, read_at: int) -> None:
    now = state.position.seq
    if not 1 <= read_at <= now:
        raise InvalidArgument(path="seq", reason=f"must be an event of the run, from 1 to {now}")
    seen = (await load(store, state.run, at_most=read_at)).working
    changed = touched_parts(patch) & changed_parts(seen, _after(state).freeze())
    if changed:
        raise PatchOutdated(run=state.run, seq=read_at, now=now, changed=tuple(sorted(changed)))


def _after(state: RunState) -> Working:
    """Return the working state as it will be after the patches that wait for the next turn."""
    working = Working(state.working)
    for each in state.patches:
        working.apply(rebased(working, each.patch))
    return working
