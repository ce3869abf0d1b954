"""Shared state of one driven run, and the types that all calls use."""
