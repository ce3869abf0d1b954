"""Running a step: attempts, verdicts, unknown outcomes, compensation."""
