"""The API for agent code: `Run`, and `BlockingRun` for plain functions."""
