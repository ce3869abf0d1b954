"""Limpet for blocking code: agents that are plain functions, and scripts without an event loop."""

from limpet.engine.blocking import BlockingRun as Run

__all__ = ["Run"]
