"""An OpenAI-compatible server on loopback that answers by script: the fields of the requested schema say who asks."""

import json
import math
import re
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

Request = dict[str, Any]
Reply = str | int  # the content of the message, or an HTTP status


class ScriptedServer:
    """Answers questions from `answers`; every request is kept in `requests`, every body it was sent in order.

    A question in `needs_demos` is answered wrongly while the prompt holds no demo, so that compiling has an effect.
    Plans, verdicts and rewrites have a fixed reply each, `replies` overrides any of them by the first field of its
    schema; a field that nothing is scripted for is filled by its type. After `dies_after` requests all fail.
    Where token probabilities are asked for, the first token is the likeliest of `next_token`. What `holds` names stays
    in flight until the server stops.
    """

    def __init__(
        self,
        answers: Mapping[str, str] | None = None,
        *,
        needs_demos: frozenset[str] = frozenset(),
        replies: Mapping[str, Callable[[Request], Reply]] | None = None,
        seconds: float = 0.0,
        reports_usage: bool = True,
        dies_after: int | None = None,
        next_token: Callable[[Request], Mapping[str, float]] | None = None,
        holds: Callable[[Request], bool] | None = None,
    ) -> None:
        self.answers = dict(answers or {})
        self.needs_demos = needs_demos
        self.replies = dict(replies or {})
        self.seconds = seconds
        self.reports_usage = reports_usage
        self.dies_after = dies_after
        self.next_token = next_token or (lambda request: {"yes": 0.9, "no": 0.1})
        self.holds = holds or (lambda request: False)
        self.requests: list[Request] = []
        self.headers: list[dict[str, str]] = []
        self.in_flight = self.most_in_flight = self.n_held = 0
        self._lock = threading.Condition()
        self._is_over = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}/v1"

    def calls_of(self, field: str) -> list[Request]:
        """Requests whose schema holds this field."""
        return [request for request in self.requests if field in fields_of(request)]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def stop(self) -> None:
        self._is_over.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def wait_until(self, is_so: Callable[[], bool], seconds: float = 600) -> None:
        """Wait for what requests bring about; the time is for a test that is broken, not for a slow machine."""
        with self._lock:
            assert self._lock.wait_for(is_so, seconds), f"still not so after {len(self.requests)} requests"

    def reply_to(self, request: Request, headers: dict[str, str]) -> Reply:
        is_held = self.holds(request)
        with self._lock:
            self.requests.append(request)
            self.headers.append(headers)
            self.in_flight += 1
            self.n_held += is_held
            self.most_in_flight = max(self.most_in_flight, self.in_flight)
            self._lock.notify_all()
        try:
            if is_held:
                self._is_over.wait()
            time.sleep(self.seconds)
            return self._reply(request)
        finally:
            with self._lock:
                self.in_flight -= 1

    def _reply(self, request: Request) -> Reply:
        if self.dies_after is not None and len(self.requests) > self.dies_after:
            return 500
        fields = fields_of(request)
        for field in fields or ["text"]:
            if field in self.replies:
                return self.replies[field](request)
        return self.scripted_reply(request)

    def scripted_reply(self, request: Request) -> str:
        """The reply that no entry of `replies` replaces."""
        fields = fields_of(request)
        if not fields:
            return "OK"
        if "answer" in fields and "citations" in fields:
            return self._answer(request)
        question = question_of(request)
        scripted = {
            "steps": [{"tool": "hybrid", "query": question}],
            "quotes": [self.answers[question]] if question in self.answers else [],
            "verdict": "sufficient",
            "missing": "",
            "standalone": question,
            "supported": {"noul": 0.9},
            "query": f"more about {question}",
            "tool": "keyword",
        }
        return json.dumps(_fill(schema_of(request), scripted), ensure_ascii=False)

    def _answer(self, request: Request) -> str:
        question = question_of(request)
        known = question in self.answers and (question not in self.needs_demos or has_demos(request))
        answer = self.answers[question] if known else "something else"
        return json.dumps({"answer": answer, "citations": [1]}, ensure_ascii=False)


def schema_of(request: Request) -> dict[str, Any]:
    return request.get("response_format", {}).get("json_schema", {}).get("schema", {})


def fields_of(request: Request) -> list[str]:
    return list(schema_of(request).get("properties", {}))


def prompt_of(request: Request) -> str:
    """The last message: the inputs of this call."""
    content = request["messages"][-1]["content"]
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


def question_of(request: Request) -> str:
    found = re.findall(r"^question: (.*)$", prompt_of(request), re.MULTILINE)
    return found[-1] if found else ""


def has_demos(request: Request) -> bool:
    return any(message["role"] == "assistant" for message in request["messages"])


def _fill(schema: dict[str, Any], scripted: Mapping[str, Any]) -> dict[str, Any]:
    return {name: scripted.get(name, _value(part)) for name, part in schema.get("properties", {}).items()}


def _value(schema: dict[str, Any]) -> Any:
    if "enum" in schema:
        return schema["enum"][0]
    defaults: dict[str, Any] = {"array": [], "integer": 1, "number": 0.5, "boolean": True, "object": {}}
    return defaults.get(schema.get("type", ""), "some text")


def _handler_of(script: ScriptedServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            reply = script.reply_to(request, dict(self.headers))
            if isinstance(reply, int):
                self._send(reply, {"error": {"message": f"scripted failure {reply}", "type": "server_error"}})
            else:
                body = _completion(request, reply, script.reports_usage)
                if request.get("logprobs"):
                    _add_probabilities(body["choices"][0], script.next_token(request))
                self._send(200, body)

        def _send(self, status: int, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            try:
                self.send_response(status)
                self.send_header("Retry-After", "0")
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except ConnectionError:
                self.close_connection = True  # the client is gone: it was interrupted or killed

        def log_message(self, *args: object) -> None:
            pass

    return Handler


def _add_probabilities(choice: dict[str, Any], tokens: Mapping[str, float]) -> None:
    ranked = sorted(tokens.items(), key=lambda one: -one[1])
    top = [{"token": token, "logprob": math.log(p), "bytes": list(token.encode())} for token, p in ranked]
    choice["logprobs"] = {"content": [top[0] | {"top_logprobs": top}] if top else []}
    choice["message"]["content"] = top[0]["token"] if top else ""


def _completion(request: Request, content: str, reports_usage: bool) -> dict[str, Any]:
    finish = "length" if content.endswith("<cut>") else "stop"
    body = {
        "id": "scripted",
        "object": "chat.completion",
        "created": 0,
        "model": request["model"],
        "choices": [
            {
                "index": 0,
                "finish_reason": finish,
                "message": {"role": "assistant", "content": content.removesuffix("<cut>")},
            }
        ],
    }
    if reports_usage:
        prompt = sum(len(str(message["content"])) for message in request["messages"]) // 4
        body["usage"] = {
            "prompt_tokens": prompt,
            "completion_tokens": len(content) // 4,
            "total_tokens": prompt + len(content) // 4,
        }
    return body
