"""Engines: how another system has runs driven, and the scenarios that every engine must pass.

An engine is an object with the methods of `Engine`. Pass it to `limpet.open(..., engine=...)`.
"""

from limpet.engine.worker.engine import Engine
from limpet.engine.worker.run_host import Drive, NotNow, RunHost
from limpet.stores import ReadyRun

__all__ = ["Drive", "Engine", "NotNow", "ReadyRun", "RunHost"]
