"""The flaky service of the demo: JSON over HTTP on this machine, with counters of what it has applied.

It fails by a script, so that every demo shows the same: some requests find it busy, and some are applied but their
reply is lost. It holds back the reply to the mail until a worker has been killed.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Lock, Thread
from typing import Any, Literal, cast

__all__ = ["Service", "serving"]

Fault = Literal["busy", "lost", "held"]
FACTS: dict[str, Any] = {
    "ticket": {"order": "o-1", "text": "it arrived broken"},
    "order": {"id": "o-1", "cents": 4900, "email": "ann@example.org"},
    "customer": {"name": "Ann", "since": 2019},
    "policy": {"number": 7, "refund": "full", "voucher": 0},
}
FAULTS: dict[str, tuple[Fault, ...]] = {
    "order": ("busy",),
    "refund": ("busy", "lost"),
    "mail": ("held",),
    "team": ("busy",),
}
BUSY = 503


class Service:
    """State and counters of the service."""

    def __init__(self, held: Callable[[], object]) -> None:
        self.asked, self.refused, self.done = Counter[str](), Counter[str](), Counter[str]()
        self.killed = Event()
        self._tell_held = held
        self._lock = Lock()
        self._by_key: dict[str, Any] = {}
        self._mails: dict[str, Any] = {}

    def answer(self, path: str, key: str, body: dict[str, Any]) -> tuple[int, Any] | None:
        """Return status and body of the reply, or None if the reply is lost."""
        with self._lock:
            fault = dict(enumerate(FAULTS.get(path, ()))).get(self.asked[path])
            self.asked[path] += 1
            if fault == "busy":
                self.refused[path] += 1
                return BUSY, {}
            found = self._do(path, key, body)
        if fault == "held":
            self._tell_held()
            self.killed.wait()
        return None if fault == "lost" else (200, found)

    def _do(self, path: str, key: str, body: dict[str, Any]) -> Any:
        if path in FACTS:
            return FACTS[path]
        if path == "sent":
            return self._mails.get(str(body), {})
        if path == "mail":  # this endpoint has no idempotency keys: a repeated request sends again
            self._mails[str(body)] = self._act(path)
            return self._mails[str(body)]
        if key not in self._by_key:
            self._by_key[key] = self._act(path)
        return self._by_key[key]

    def _act(self, path: str) -> dict[str, str]:
        self.done[path] += 1
        return {"id": f"{path}-{self.done[path]}"}


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, service: Service) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.service = service


class _Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        """Handle one request."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        service = cast("_Server", self.server).service
        answer = service.answer(self.path[1:], self.headers["Idempotency-Key"], body)
        if answer is None:
            return
        status, found = answer
        data = json.dumps(found).encode()
        try:
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            self.close_connection = True  # the client is dead

    def log_message(self, *_: object) -> None:
        """Do not log; the counters show what happened."""


@contextmanager
def serving(held: Callable[[], object]) -> Iterator[tuple[Service, int]]:
    """Run the service; yield it with its port. `held` is called, on another thread, when the mail is sent and its reply
    held back.
    """
    service = Service(held)
    server = _Server(service)
    thread = Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield service, server.server_address[1]
    finally:
        service.killed.set()
        server.shutdown()
        server.server_close()
        thread.join()
