"""Replay of a recorded run: history, lookup of recorded calls, order of returns."""
