"""Test agents: an in-memory store, a clock that only moves on request, stubbed tools, scripted models, and crashes."""

from limpet.testing.app import TestApp, app
from limpet.testing.crash_test import CrashReport, crash_everywhere
from limpet.testing.replay import still_replays
from limpet.testing.resume import always_resume
from limpet.testing.scripted_model import ScriptedModel, calls
from limpet.testing.timeout_warning import TimeoutAroundWait

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
