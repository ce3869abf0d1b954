"""A scripted server with the API of OpenAI's chat completions.

In a test, `with OpenAIServer(script) as server` runs it in a thread; set OPENAI_BASE_URL to `server.url`. As a process
of its own, it outlives workers that are killed:

    python -m tests.servers.openai_server PORTFILE SCRIPT

SCRIPT is `module:name` of a script in Python, or a JSON file. A script is a function from the JSON of a request to an
answer, or a list of answers: answer k is for a request with k messages of an assistant, so that the same request always
gets the same answer. An answer is text, an `Answer`, or a dict with its fields.

Failures are selected by the number of a request, counted from 1: `failures={2: {"status": 500}}`, in JSON beside
`replies`; the script is not called for them. `/stats` returns the requests so far, `/release` releases held answers.
"""

import importlib
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Literal, Self
from urllib.request import Request, urlopen

__all__ = ["Answer", "OpenAIServer", "ServerProcess", "call", "echo"]

Script = Callable[[dict[str, Any]], Any] | list[Any]
MODEL = "scripted-1"


@dataclass(frozen=True)
class Answer:
    """An answer; the defaults are a successful one."""

    text: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    """Tool calls made by `call`; those without an id get one."""
    refusal: str = ""
    finish: str | None = ""
    """Finish reason; derived from the other fields if empty."""
    usage: dict[str, Any] = field(default_factory=lambda: {"prompt_tokens": 11, "completion_tokens": 7})
    pieces: list[dict[str, Any]] | None = None
    """Deltas of a stream, instead of those derived from the other fields."""
    body: Any = None
    """JSON sent instead of a completion; text is sent verbatim."""
    status: int = 200
    message: str = "it was planned so"
    code: str | None = None
    """Message and code of an error."""
    headers: dict[str, str] = field(default_factory=dict)
    cut: Literal["", "torn", "quiet"] = ""
    """Where a stream is cut: with the connection, or as if it were complete."""
    hold: bool = False
    """Whether the answer is held until `release`."""


def call(name: str, args: Mapping[str, Any] | str, id: str | None = None) -> dict[str, Any]:
    """Return a tool call for an answer; text arguments are sent verbatim."""
    text = args if isinstance(args, str) else json.dumps(dict(args))
    function = {"type": "function", "function": {"name": name, "arguments": text}}
    return function if id is None else {"id": id, **function}


def echo(request: dict[str, Any]) -> Answer:
    """Script that repeats the last message."""
    return Answer(text=request["messages"][-1]["content"])


class OpenAIServer:
    """The server in a thread, as a context manager."""

    def __init__(self, script: Script, failures: Mapping[int, Any] | None = None) -> None:
        self.requests: list[dict[str, Any]] = []
        """JSON of every request."""
        self.headers: list[dict[str, str]] = []
        """Headers of every request, in lower case."""
        self.answered = 0
        """Number of complete replies without an error."""
        self.failures = dict(failures or {})
        self.arrived = threading.Condition()
        self._script = script
        self._let_go = threading.Event()
        self._server = _Listener(("127.0.0.1", 0), _Handler)
        self._server.owner = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), name="openai", daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    @property
    def url(self) -> str:
        """Base URL for clients."""
        return f"http://127.0.0.1:{self.port}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._let_go.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def serve(self) -> None:
        """Serve in this thread until the process ends."""
        self._server.serve_forever(0.01)

    def fail(self, answer: Any, times: int = 1) -> None:
        """Give this answer to the next requests, before the script."""
        first = len(self.requests) + 1
        self.failures |= dict.fromkeys(range(first, first + times), answer)

    def release(self) -> None:
        """Release held answers, now and later."""
        self._let_go.set()

    def wait_for(self, requests: int) -> None:
        """Wait until this many requests have arrived."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: len(self.requests) >= requests, timeout=60)

    def stats(self) -> dict[str, Any]:
        """Return the requests so far, and their number, in all and by number of assistant messages."""
        with self.arrived:
            turns = [str(turn(each)) for each in self.requests]
            by_turn = {each: turns.count(each) for each in dict.fromkeys(turns)}
            return {
                "requests": len(turns),
                "answered": self.answered,
                "by_turn": by_turn,
                "bodies": list(self.requests),
            }

    def take(self, request: dict[str, Any], headers: dict[str, str]) -> Answer:
        """Record a request, and return its answer."""
        with self.arrived:
            self.requests.append(request)
            self.headers.append(headers)
            number = len(self.requests)
            self.arrived.notify_all()
        answer = as_answer(self.failures[number] if number in self.failures else self._scripted(request))
        if answer.hold:
            self._let_go.wait()
        with self.arrived:
            self.answered += answer.status == 200 and answer.body is None and not answer.cut
        return answer

    def _scripted(self, request: dict[str, Any]) -> Any:
        if not isinstance(self._script, list):
            try:
                return self._script(request)
            except Exception as error:  # noqa: BLE001 - the client gets any error
                return Answer(status=400, message=f"the script failed: {error!r}")
        place = turn(request)
        if place < len(self._script):
            return self._script[place]
        return Answer(status=400, message=f"the script has {len(self._script)} replies, and none for turn {place}")


class ServerProcess:
    """The server in its own process, as a context manager; it outlives killed workers."""

    def __init__(self, script: str, folder: Path) -> None:
        self._script, self._port = script, folder / "openai.port"

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "tests.servers.openai_server", str(self._port), self._script]
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2], start_new_session=True
        )
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "ready\n"
        return self

    def __exit__(self, *exc: object) -> None:
        self._process.terminate()
        self._process.communicate()

    @property
    def url(self) -> str:
        """Base URL for clients."""
        return f"http://127.0.0.1:{self._port.read_text(encoding='utf-8')}/v1"

    def stats(self) -> dict[str, Any]:
        """Return the statistics of the server."""
        with urlopen(self.url.removesuffix("/v1") + "/stats") as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def release(self) -> None:
        """Release held answers, now and later."""
        with urlopen(Request(self.url.removesuffix("/v1") + "/release", method="POST")):
            pass


def turn(request: Mapping[str, Any]) -> int:
    """Return the number of assistant messages in a request."""
    return sum(each["role"] == "assistant" for each in request["messages"])


def as_answer(said: Any) -> Answer:
    """Return an answer from any of its forms."""
    if isinstance(said, Answer):
        return said
    return Answer(text=said) if isinstance(said, str) else Answer(**said)


class _Listener(ThreadingHTTPServer):
    owner: OpenAIServer
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: clients are killed or time out on purpose."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    """One connection with one request."""

    protocol_version = "HTTP/1.1"
    server: _Listener

    def do_GET(self) -> None:
        if self.path == "/stats":
            self._send(200, json.dumps(self.server.owner.stats()))
        else:
            self._send(404, json.dumps(_error(Answer(message=f"there is no {self.path}"))))

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.path == "/release":
            self.server.owner.release()
            self._send(200, "{}")
        elif self.path == "/v1/chat/completions":
            self._complete(json.loads(body))
        else:
            self._send(404, json.dumps(_error(Answer(message=f"there is no {self.path}"))))

    def _complete(self, request: dict[str, Any]) -> None:
        answer = self.server.owner.take(request, {name.lower(): value for name, value in self.headers.items()})
        if answer.status != 200 or answer.body is not None:
            body = _error(answer) if answer.body is None else answer.body
            self._send(answer.status, body if isinstance(body, str) else json.dumps(body), answer.headers)
        elif request.get("stream"):
            self._stream(answer, request)
        else:
            text = json.dumps(_completion(answer, request))
            self._send(200, text, answer.headers, torn=bool(answer.cut))

    def _send(self, status: int, text: str, headers: Mapping[str, str] | None = None, torn: bool = False) -> None:
        data = text.encode()
        self._begin(status, {"Content-Type": "application/json", "Content-Length": str(len(data)), **(headers or {})})
        self.wfile.write(data[: len(data) // 2] if torn else data)

    def _stream(self, answer: Answer, request: dict[str, Any]) -> None:
        self._begin(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked", **answer.headers})
        chunks = list(_chunks(answer, request))
        for chunk in chunks[: len(chunks) // 2] if answer.cut else chunks:
            self._write(f"data: {chunk if isinstance(chunk, str) else json.dumps(chunk)}\n\n".encode())
        if answer.cut != "torn":
            self._write(b"")  # so that it ends correctly

    def _begin(self, status: int, headers: Mapping[str, str]) -> None:
        self.send_response_only(status)
        for name, value in {"Connection": "close", **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = True

    def _write(self, data: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing."""


def _error(answer: Answer) -> dict[str, Any]:
    return {"error": {"message": answer.message, "type": "planned", "param": None, "code": answer.code}}


def _head(kind: str, request: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": "chatcmpl-1", "object": kind, "created": 1_700_000_000, "model": request.get("model") or MODEL}


def _finish(answer: Answer) -> str | None:
    if answer.finish != "":
        return answer.finish
    return "tool_calls" if answer.calls else "stop"


def _calls(answer: Answer, request: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"id": f"call_{turn(request)}_{place}", **each} for place, each in enumerate(answer.calls)]


def _completion(answer: Answer, request: dict[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": answer.text or None, "refusal": answer.refusal or None}
    if answer.calls:
        message["tool_calls"] = _calls(answer, request)
    choice = {"index": 0, "message": message, "finish_reason": _finish(answer)}
    return {**_head("chat.completion", request), "choices": [choice], "usage": _usage(answer)}


def _usage(answer: Answer) -> dict[str, Any]:
    usage = answer.usage
    return {"total_tokens": usage.get("prompt_tokens", 0) + usage.get("completion_tokens", 0), **usage}


def _chunks(answer: Answer, request: dict[str, Any]) -> Iterator[Any]:
    """Return the chunks of a stream: role, deltas, finish reason, and usage if requested."""
    head = _head("chat.completion.chunk", request)
    deltas = list(_deltas(answer, request)) if answer.pieces is None else answer.pieces
    for delta in [{"role": "assistant", "content": ""}, *deltas]:
        yield {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {**head, "choices": [{"index": 0, "delta": {}, "finish_reason": _finish(answer)}]}
    if (request.get("stream_options") or {}).get("include_usage"):
        yield {**head, "choices": [], "usage": _usage(answer)}
    yield "[DONE]"


def _deltas(answer: Answer, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for name in ("content", "refusal"):
        text = answer.text if name == "content" else answer.refusal
        yield from ({name: piece} for piece in re.findall(r"\s*\S+|\s+", text))
    for place, each in enumerate(_calls(answer, request)):
        args = each["function"]["arguments"]
        yield {"tool_calls": [{**each, "index": place, "function": {**each["function"], "arguments": ""}}]}
        for start in range(0, len(args), 5):
            yield {"tool_calls": [{"index": place, "function": {"arguments": args[start : start + 5]}}]}


def _load(name: str) -> OpenAIServer:
    if not name.endswith(".json"):
        module, _, attribute = name.partition(":")
        return OpenAIServer(getattr(importlib.import_module(module), attribute))
    script = json.loads(Path(name).read_text(encoding="utf-8"))
    if isinstance(script, list):
        return OpenAIServer(script)
    return OpenAIServer(script["replies"], {int(at): each for at, each in script.get("failures", {}).items()})


def main(port: str, script: str) -> None:
    """Serve until the process is killed; write the port file when the server is ready."""
    server = _load(script)
    fresh = Path(f"{port}.new")
    fresh.write_text(str(server.port), encoding="utf-8")
    os.replace(fresh, port)
    print("ready", flush=True)
    server.serve()


if __name__ == "__main__":
    importlib.import_module("tests.servers.openai_server").main(*sys.argv[1:])  # scripts import the module by this name
