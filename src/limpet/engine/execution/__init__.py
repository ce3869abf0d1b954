"""Shared state of one driven run, and the types that all methods of a run use."""
