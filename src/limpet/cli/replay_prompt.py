"""A debugger in the code of an agent: the prompt opens where the code comes to a step, with its variables at hand."""

import os
import sys
from collections.abc import Callable
from pdb import Pdb
from threading import get_ident
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
        sys.stdout.flush()
        os._exit(0)  # in the middle of everything, as was said
    if debugger.stoplineno != -1:
        each: FrameType | None = frame
        while each is not None:
            each.f_trace = debugger.trace_dispatch
            each = each.f_back
        sys.settrace(debugger.trace_dispatch)


def _frame() -> FrameType:
    """Where the agent's code is: up from here, or in the thread of a blocking agent that waits for this."""
    here = sys._getframe()
    others = [frame for thread, frame in sys._current_frames().items() if thread != get_ident()]
    found = (_users(frame) for frame in (here, *others))
    return next((frame for frame in found if frame is not None), here)


def _users(frame: FrameType | None) -> FrameType | None:
    """The innermost frame that calls us and is not ours; nothing if an event loop is what calls us."""
    is_called = False
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith(("asyncio", "concurrent")) and is_called:
            return None
        if name.startswith("limpet.engine."):
            is_called = True
        elif is_called and not name.startswith(OURS):
            return frame
        frame = frame.f_back
    return None
