"""Testing agents: a store in memory, a clock that stands still, tools that are stubbed, processes that crash."""

from limpet.testing.app import TestApp, app

__all__ = ["TestApp", "app"]
