"""Durable runs: an agent's code driven against its log. Replay is pure and apart from the live run."""
