"""Durable execution: an agent's code driven against the run's log. Replay is pure and separate from the live run."""
