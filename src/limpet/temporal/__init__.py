"""Temporal as an engine: one workflow per run, which has some worker drive it. The log of the run stays the truth."""

from limpet.temporal.temporal_address import TemporalAddress
from limpet.temporal.temporal_engine import TemporalEngine

__all__ = ["TemporalAddress", "TemporalEngine"]
