"""Checks before a step: approvals and fresh data."""
