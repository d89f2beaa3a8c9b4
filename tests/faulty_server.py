"""An LM endpoint on loopback that misbehaves as told, one fault a request, and answers `OK` when none is left."""

import json
import threading
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

OK = json.dumps(
    {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "test",
        "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "OK"}}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 1, "total_tokens": 8},
    }
).encode()


STREAMED = ('{"colour": "yel', 'low"}')


def event(content: str | None, finish: str | None = None) -> bytes:
    delta = {"content": content} if content is not None else {}
    chunk = {"id": "x", "object": "chat.completion.chunk", "created": 0, "model": "test"}
    return b"data: " + json.dumps(chunk | {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}).encode()


class FaultyServer:
    """Faults: `429` and other statuses, `hang`, `trickle`, `cut`, `garbage`, `stream`, `slow-stream`, `cut-stream`.

    What hangs ends when the server is left.
    """

    def __init__(self, faults: Iterable[str] = (), *, always: str | None = None, retry_after: str = "0") -> None:
        self.faults = list(faults)
        self.always = always
        self.retry_after = retry_after
        self.requests: list[dict[str, Any]] = []
        self.is_over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.is_over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def _handler_of(server: FaultyServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            server.requests.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            fault = server.always or (server.faults.pop(0) if server.faults else "ok")
            try:
                if fault.isdigit():
                    self._send(int(fault), b'{"error": {"message": "scripted failure"}}')
                else:
                    getattr(self, f"_{fault.replace('-', '_')}")()
            except ConnectionError:
                pass  # the client is gone

        def _ok(self) -> None:
            self._send(200, OK)

        def _garbage(self) -> None:
            self._send(200, b"<html>Sign in to the proxy</html>", "text/html")

        def _cut(self) -> None:
            self._send(200, OK[:40], length=len(OK))

        def _hang(self) -> None:
            server.is_over.wait()

        def _trickle(self) -> None:
            self._send(200, b"", length=10_000)
            while not server.is_over.wait(0.02):
                self.wfile.write(b" ")
                self.wfile.flush()

        def _stream(self) -> None:
            self._send_events(*map(event, STREAMED), event(None, "stop"), b"data: [DONE]")

        def _slow_stream(self) -> None:
            self._send_events(event(STREAMED[0]))
            while not server.is_over.wait(0.02):
                self.wfile.write(event(" ") + b"\n\n")
                self.wfile.flush()

        def _cut_stream(self) -> None:
            self._send_events(event(STREAMED[0]))

        def _send_events(self, *events: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.end_headers()
            for one in events:
                self.wfile.write(one + b"\n\n")
                self.wfile.flush()

        def _send(self, status: int, body: bytes, kind: str = "application/json", length: int | None = None) -> None:
            self.send_response(status)
            self.send_header("Retry-After", server.retry_after)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body) if length is None else length))
            self.end_headers()
            self.wfile.write(body)
            self.wfile.flush()

        def log_message(self, *args: object) -> None:
            pass

    return Handler
