"""Policies: pure functions from facts to a decision, which is a value. One module per question."""
