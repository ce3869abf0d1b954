"""Redaction of log records of the logger "limpet"."""

import logging
from traceback import format_exception

from limpet.redaction import hide_secrets

__all__ = ["RedactingFilter"]


class RedactingFilter(logging.Filter):
    """Removes text that looks like a secret. A traceback becomes text, because its objects could show more."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record itself, so that all handlers get the redacted form. Always returns True."""
        record.msg, record.args = hide_secrets(_message(record)), ()
        if record.exc_info and record.exc_info[1] is not None:
            record.exc_text = hide_secrets("".join(format_exception(record.exc_info[1])).rstrip("\n"))
            record.exc_info = None
        return True


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - a bad log call must not raise
        return f"{record.msg} {record.args}"
