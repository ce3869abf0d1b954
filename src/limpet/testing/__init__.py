"""Testing agents: a store in memory, a clock that stands still, tools that are stubbed, processes that crash."""

from limpet.testing.app import TestApp, app
from limpet.testing.crashes import CrashReport, crash_everywhere
from limpet.testing.replaying import still_replays
from limpet.testing.resuming import always_resume
from limpet.testing.scripted import ScriptedModel, calls
from limpet.testing.timeouts import TimeoutAroundWait

__all__ = [
    "CrashReport",
    "ScriptedModel",
    "TestApp",
    "TimeoutAroundWait",
    "always_resume",
    "app",
    "calls",
    "crash_everywhere",
    "still_replays",
]
