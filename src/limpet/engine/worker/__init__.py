"""Claiming and driving runs."""
