"""Waiting for time, signals and people."""
