"""Lines on the logger "limpet": what looks like a secret is taken out, whoever reads them."""

import logging
from traceback import format_exception

from limpet.redaction import hide_secrets

__all__ = ["RedactingFilter"]


class RedactingFilter(logging.Filter):
    """Lets every line through, as it may be said; a traceback becomes text, because its objects would say the rest."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Change the record itself: all handlers get it so."""
        record.msg, record.args = hide_secrets(_message(record)), ()
        if record.exc_info and record.exc_info[1] is not None:
            record.exc_text = hide_secrets("".join(format_exception(record.exc_info[1])).rstrip("\n"))
            record.exc_info = None
        return True


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - whoever wrote the line, it is no reason to fail
        return f"{record.msg} {record.args}"
