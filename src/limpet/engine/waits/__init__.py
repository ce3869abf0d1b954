"""Waits for time, signals, people and other runs."""
