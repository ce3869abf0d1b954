"""Lines on the logger: every handler gets them without what looks like a secret."""

import logging

import pytest

from limpet import Secret
from limpet.engine.execution.log_redaction import RedactingFilter
from tests.unit.credentials import EVERY

CREDENTIAL = EVERY[0]


def test_a_line_is_said_without_its_secrets(caplog: pytest.LogCaptureFixture) -> None:
    """In the text, in what it is filled with, and in the traceback."""
    secret = Secret("open sesame")
    log = logging.getLogger("limpet")
    error = ValueError(f"{CREDENTIAL.text} and {secret.reveal()}")
    log.error("%s, %r, %s", CREDENTIAL.text, secret, secret.reveal(), exc_info=error)
    [record] = caplog.records
    assert not any(each in f"{caplog.text} {vars(record)}" for each in (CREDENTIAL.hides, "sesame"))
    assert "ValueError: " in caplog.text


def test_a_line_that_does_not_fit_its_arguments_is_said_all_the_same() -> None:
    """A wrong line is no reason to fail, nor to tell more."""
    record = logging.LogRecord("limpet", logging.INFO, "x.py", 1, "%d of %s", (CREDENTIAL.text,), None)
    assert RedactingFilter().filter(record)
    assert CREDENTIAL.hides not in record.getMessage()
