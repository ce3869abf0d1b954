"""Execution of a step: attempts, verdicts, unknown outcomes, compensation."""
