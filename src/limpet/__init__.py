"""Limpet: the state layer that production AI agents are missing."""
