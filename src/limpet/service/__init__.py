"""One door behind all doors: commands, queries, and what they show."""

from limpet.service.app import App

__all__ = ["App"]
