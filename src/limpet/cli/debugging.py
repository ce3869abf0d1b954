"""A debugger in the code of an agent: the prompt opens where the code comes to a step, with its variables at hand."""

import sys
from collections.abc import Callable
from pdb import Pdb
from types import FrameType

__all__ = ["prompt_at"]

# Frames that are not the user's.
OURS = ("limpet.", "asyncio.", "concurrent.")


def prompt_at(step: int) -> Callable[[int], None]:
    """What opens a prompt when the code comes to a step of this number."""

    def coming_to(number: int) -> None:
        if number == step:
            _prompt(_frame())

    return coming_to


def _prompt(frame: FrameType) -> None:
    """`c` goes on, `n` and `s` step through the user's own code, `q` ends the program."""
    debugger = Pdb(skip=[f"{each}*" for each in OURS])
    debugger.reset()
    debugger.interaction(frame, None)
    if debugger.quitting:
        raise SystemExit(0)
    if debugger.stoplineno != -1:
        each: FrameType | None = frame
        while each is not None:
            each.f_trace = debugger.trace_dispatch
            each = each.f_back
        sys.settrace(debugger.trace_dispatch)


def _frame() -> FrameType:
    """Where the agent's code is: up from here, or in the thread of a blocking agent that waits for this."""
    threads = [frame for frame in sys._current_frames().values() if frame is not sys._getframe()]
    for start in (sys._getframe(), *threads):
        found = _users(start)
        if found is not None:
            return found
    return sys._getframe()


def _users(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that calls us and is not ours."""
    is_called = False
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith("limpet.engine."):
            is_called = True
        elif is_called and not name.startswith(OURS) and name not in ("asyncio", "threading"):
            return frame
        frame = frame.f_back
    return None
