"""Log redaction: handlers get log records without credentials."""

import logging

import pytest

import limpet.compose  # noqa: F401 - installs the filter
from limpet import Secret
from limpet.engine.execution.log_redaction import RedactingFilter
from tests.unit.credentials import EVERY

CREDENTIAL = EVERY[0]


def test_credentials_in_a_log_record_are_redacted(caplog: pytest.LogCaptureFixture) -> None:
    """This applies to the text, the arguments and the traceback."""
    secret = Secret("open sesame")
    log = logging.getLogger("limpet")
    error = ValueError(f"{CREDENTIAL.text} and {secret.reveal()}")
    log.error("%s, %r, %s", CREDENTIAL.text, secret, secret.reveal(), exc_info=error)
    [record] = caplog.records
    assert not any(each in f"{caplog.text} {vars(record)}" for each in (CREDENTIAL.hides, "sesame"))
    assert "ValueError: " in caplog.text


def test_a_log_record_with_wrong_arguments_is_redacted() -> None:
    """The filter neither fails nor shows more."""
    record = logging.LogRecord("limpet", logging.INFO, "x.py", 1, "%d of %s", (CREDENTIAL.text,), None)
    assert RedactingFilter().filter(record)
    assert CREDENTIAL.hides not in record.getMessage()
