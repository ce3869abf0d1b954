"""Scenarios of the official suite that fail, with the reason. `make mcp-conformance` checks that exactly these do."""

from collections.abc import Mapping

__all__ = ["EXPECTED"]

NO_REQUESTS = (
    "the server is stateless: it keeps no connection on which it could send a request to a client of this revision. "
    "It asks for input by the means of 2026-07-28, and gives others a link or a command"
)
NO_LOGS = "the server sends no log messages, which 2026-07-28 deprecates (SEP-2577)"
NO_SESSIONS = "the server is stateless, and could not send updates; 2026-07-28 has subscriptions/listen"

EXPECTED: Mapping[tuple[str, str], str] = {
    ("2025-11-25", "logging-set-level"): NO_LOGS,
    ("2025-11-25", "tools-call-with-logging"): NO_LOGS,
    ("2025-11-25", "tools-call-sampling"): NO_REQUESTS,
    ("2025-11-25", "tools-call-elicitation"): NO_REQUESTS,
    ("2025-11-25", "elicitation-sep1034-defaults"): NO_REQUESTS,
    ("2025-11-25", "elicitation-sep1330-enums"): NO_REQUESTS,
    ("2025-11-25", "resources-subscribe"): NO_SESSIONS,
    ("2025-11-25", "resources-unsubscribe"): NO_SESSIONS,
}
"""Reason by revision and scenario."""
