"""A pipe that ties a process to the one that started it: when the other end closes, the process stops."""

import os
import signal
from threading import Thread

__all__ = ["LIFELINE", "hold_lifeline"]

LIFELINE = "LIMPET_LIFELINE"
"""Variable with the file descriptor of the pipe."""


def hold_lifeline(pipe: int) -> None:
    """Stop this process with SIGTERM when the process that started it is gone, however it ended."""
    Thread(target=_end_with_parent, args=(pipe,), daemon=True).start()


def _end_with_parent(pipe: int) -> None:
    os.read(pipe, 1)
    os.kill(os.getpid(), signal.SIGTERM)
