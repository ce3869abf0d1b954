"""An external service that counts its requests: the only witness of the effects of runs.

`POST /keyed/…` is applied once per Idempotency-Key, `POST /once/…` every time, and `POST /read/…` is only counted.
`GET` returns how often a path was applied. A held request is applied immediately and answered when released.
"""

import json
from collections import Counter
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Condition, Event, Thread
from typing import Any, Self

__all__ = ["Service", "request_service"]


def request_service(port: int, verb: str, path: str, key: str = "") -> int:
    """Send a request to the service and return its answer."""
    line = HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        line.request(verb, path, headers={"Idempotency-Key": key} if key else {})
        found: int = json.loads(line.getresponse().read())
        return found
    finally:
        line.close()


class Service(ThreadingHTTPServer):
    """The service on its own port, with threads of this process; use as `with`."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.arrived: Counter[str] = Counter()
        """Number of posts per path."""
        self.applied: Counter[str] = Counter()
        """Number of applied posts per path."""
        self._keys: set[str] = set()
        self._gates: dict[str, Event] = {}
        self._changed = Condition()
        self._under_way: set[Any] = set()

    def __enter__(self) -> Self:
        Thread(target=self.serve_forever, args=(0.01,), name="service", daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        for path in self._gates:
            self.release(path)
        self.shutdown()
        self.server_close()

    def hold(self, path: str) -> None:
        """Delay the answer to the first request of this path until it is released."""
        self._gates[path] = Event()

    def release(self, path: str) -> None:
        """Answer the held request."""
        self._gates[path].set()

    def wait_for(self, path: str) -> None:
        """Wait until a request has reached this path."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.arrived[path], timeout=60), path

    def settle(self) -> None:
        """Wait until all requests that a dead process has sent are finished."""
        request_service(self.server_port, "GET", "/")  # it is accepted after all earlier requests
        with self._changed:
            before = {*self._under_way}
            assert self._changed.wait_for(lambda: not before & self._under_way, timeout=60)

    def forget(self) -> None:
        """Reset all counters and keys."""
        with self._changed:
            self.arrived.clear()
            self.applied.clear()
            self._keys.clear()

    def post(self, path: str, key: str) -> int:
        """Count a post, and return how often the path was posted to (reads) or applied."""
        kind = path.split("/")[1]
        with self._changed:
            self.arrived[path] += 1
            self.applied[path] += kind == "once" or (kind == "keyed" and key not in self._keys)
            self._keys.add(key)
            self._changed.notify_all()
            gate = self._gates.get(path) if self.arrived[path] == 1 else None
            answer = self.arrived[path] if kind == "read" else self.applied[path]
        if gate is not None:
            gate.wait()
        return answer

    # Called by the standard library: accept requests in order, then handle each on its own thread

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changed:
            self._under_way.add(request)
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        super().process_request_thread(request, client_address)
        with self._changed:
            self._under_way.discard(request)
            self._changed.notify_all()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of clients that were killed."""


class _Answer(BaseHTTPRequestHandler):
    server: Service

    def do_POST(self) -> None:
        self._say(self.server.post(self.path, self.headers.get("Idempotency-Key", "")))

    def do_GET(self) -> None:
        self._say(self.server.applied[self.path])

    def _say(self, what: int) -> None:
        text = json.dumps(what).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""
