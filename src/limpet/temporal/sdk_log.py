"""The log of Temporal's client: one line a minute while the server is away, instead of one for each repeated call."""

import logging
import re
from functools import cache

from temporalio.runtime import LogForwardingConfig, LoggingConfig, Runtime, TelemetryConfig, TelemetryFilter

__all__ = ["SdkFilter", "quiet_runtime"]

# The part of the client that repeats calls. Its other warnings are about deliveries that Temporal gave up on, which the
# engine expects.
REPEATS = "temporalio_client::retry"
# Seconds between two lines.
PAUSE = 60


class SdkFilter(logging.Filter):
    """Drops warnings of the client, except that the server does not answer."""

    def __init__(self) -> None:
        super().__init__()
        self._said_at = 0.0

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether to log a record."""
        if record.levelno >= logging.ERROR:
            return True
        found = getattr(record, "temporal_log", None)
        if found is None or found.target != REPEATS or record.created < self._said_at + PAUSE:
            return False
        self._said_at = record.created
        record.msg, record.args = "Temporal does not answer, trying again: %s", (_reason(str(found.fields)),)
        return True


def _reason(fields: str) -> str:
    """Return the message of the status in a record of a repeated call."""
    found = re.search(r'message: "([^"]*)"', fields)
    return found[1] if found else "the call failed"


@cache
def quiet_runtime() -> Runtime:
    """Return the runtime of the client in this process. Its log goes to Python's, instead of stdout."""
    ours, python = logging.getLogger("limpet.temporal"), logging.getLogger("temporalio")
    ours.addFilter(SdkFilter())
    if python.level == logging.NOTSET:
        python.setLevel(logging.WARNING)  # at INFO, each task queue says that it stops
    levels = TelemetryFilter(core_level="WARN", other_level="ERROR")
    return Runtime(telemetry=TelemetryConfig(logging=LoggingConfig(levels, LogForwardingConfig(ours))))
