import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from programs.apis import ApiError, ApiTool, load_apis

TOML = """
[[tool]]
name = "stock"
description = "Units of a part that lie in a warehouse now"
url = "http://{host}/stock/{{part}}"
host = "{host}"
when = ["stock", "库存"]
timeout_s = 3.0
max_bytes = 500

[tool.parameters.part]
pattern = 'P-\\d+'

[tool.parameters.warehouse]
choices = ["north", "south"]
required = false

[tool.parameters.n]
type = "integer"
minimum = 1
maximum = 9
required = false
"""


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        part = self.path.partition("?")[0].rpartition("/")[2]
        self.server.seen.append((self.path, self.headers.get("Authorization")))  # type: ignore[attr-defined]
        if part == "P-302":
            return self.reply(302, b"", Location=self.headers["Host"] and "http://localhost:1/stolen")
        if part == "P-303":
            return self.reply(302, b"", Location="/stock/P-1")
        if part == "P-304":
            return self.reply(302, b"", Location="/stock/P-304")
        if part == "P-404":
            return self.reply(404, b"no")
        if part == "P-9":
            return self.reply(200, b"x" * 501, **{"Content-Type": "text/plain"})
        if part == "P-8":
            return self.reply(200, b"\x00\x01", **{"Content-Type": "image/png"})
        if part == "P-7":
            return self.reply(200, b"", **{"Content-Type": "text/plain"})
        if part == "P-6":
            self.server.go_on.wait(20)  # type: ignore[attr-defined]
        return self.reply(200, json.dumps({"part": part, "units": 12}).encode(), **{"Content-Type": "application/json"})

    def reply(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        server.seen, server.go_on = [], threading.Event()  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        yield server
        server.go_on.set()  # type: ignore[attr-defined]
        server.shutdown()
        thread.join()


@pytest.fixture
def stock(server: Any, tmp_path: Path) -> ApiTool:
    path = tmp_path / "tools.toml"
    path.write_text(TOML.format(host=f"127.0.0.1:{server.server_address[1]}"))
    return load_apis(path)["stock"]


def test_what_a_tool_brings_is_evidence_with_an_id(stock: ApiTool, server: Any) -> None:
    hit = stock.call({"part": "P-1", "warehouse": "north", "n": 3})
    assert json.loads(hit.passage.text) == {"part": "P-1", "units": 12}
    assert hit.passage.title == "stock(n=3, part=P-1, warehouse=north)"
    assert hit.passage.passage_id.startswith("stock#")
    assert server.seen[-1] == ("/stock/P-1?warehouse=north&n=3", None)


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, "part: Field required"),
        ({"part": "X"}, "part: String should match pattern"),
        ({"part": "P-1/../../admin"}, "part: String should match pattern"),
        ({"part": "P-1\n"}, "part: String should match pattern"),
        ({"part": "P-1", "warehouse": "east"}, "warehouse: Input should be 'north' or 'south'"),
        ({"part": "P-1", "n": 10}, "n: Input should be less than or equal to 9"),
        ({"part": "P-1", "n": "many"}, "n: Input should be a valid integer"),
        ({"part": "P-1", "url": "http://evil"}, "url: Extra inputs are not permitted"),
    ],
)
def test_wrong_arguments_are_refused_before_any_call(
    stock: ApiTool, server: Any, arguments: dict[str, Any], error: str
) -> None:
    n_calls = len(server.seen)
    with pytest.raises(ApiError) as refused:
        stock.call(arguments)
    assert str(refused.value).startswith(f"stock: {error}")
    assert len(server.seen) == n_calls


@pytest.mark.parametrize(
    ("part", "error"),
    [
        ("P-302", "sent on to another host, which is not followed"),
        ("P-304", "sent on more than 3 times"),
        ("P-404", "HTTP 404 Not Found"),
        ("P-9", "more than 500 bytes"),
        ("P-8", "expected text or JSON, got image/png"),
        ("P-7", "an empty reply"),
        ("P-6", "ReadTimeout"),
    ],
)
def test_a_call_that_fails_says_why(stock: ApiTool, part: str, error: str) -> None:
    with pytest.raises(ApiError, match=f"^stock: {error}"):
        stock.call({"part": part})


def test_it_is_sent_on_within_its_host_alone(stock: ApiTool) -> None:
    assert json.loads(stock.call({"part": "P-303"}).passage.text)["part"] == "P-1"


def test_a_token_comes_from_the_environment(stock: ApiTool, server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    guarded = stock.model_copy(update={"token_env": "STOCK_TOKEN"})
    with pytest.raises(ApiError, match="STOCK_TOKEN is not set in the environment"):
        guarded.call({"part": "P-1"})
    monkeypatch.setenv("STOCK_TOKEN", "SECRET")
    guarded.call({"part": "P-1"})
    assert server.seen[-1][1] == "Bearer SECRET"


def test_a_text_in_a_path_can_not_leave_it(stock: ApiTool, server: Any) -> None:
    free = stock.model_copy(
        update={"parameters": {"part": stock.parameters["part"].model_copy(update={"pattern": None})}}
    )
    free.call({"part": "a/../b?x=1#y"})
    assert server.seen[-1][0] == "/stock/a%2F..%2Fb%3Fx%3D1%23y"
    for stray in ("", ".", ".."):
        with pytest.raises(ApiError, match="part: names no resource"):
            free.call({"part": stray})


@pytest.mark.parametrize(
    ("question", "arguments"),
    [
        ("stock of P-4417?", {"part": "P-4417"}),
        ("P-4417的库存", {"part": "P-4417"}),
        ("stock of P-1 and P-2?", None),
        ("stock of relays", None),
    ],
)
def test_arguments_are_filled_by_rule_where_the_question_holds_them(
    stock: ApiTool, question: str, arguments: dict[str, str] | None
) -> None:
    assert stock.is_asked_for(question)
    assert stock.arguments_by_rule(question) == arguments


def test_only_a_question_with_its_words_asks_a_tool(stock: ApiTool) -> None:
    assert not stock.is_asked_for("How many stockings are there?")
    assert not stock.is_asked_for("保修期")


HOST = "127.0.0.1:1"


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (("name =", "nam ="), "tool 1: name: Field required"),
        (('name = "stock"', 'name = "Bad Name"'), "tool 1: name: String should match pattern"),
        ((f'host = "{HOST}"', 'host = "other"'), r"tool 1: .*url: expected http\(s\)://other/"),
        (("{part}", "{else}"), "tool 1: .*url: {else} is no parameter"),
        (("timeout_s = 3.0", "timeout_s = 0"), "tool 1: timeout_s: Input should be greater than 0"),
        (("timeout_s = 3.0", 'method = "POST"'), "tool 1: method: Input should be 'GET'"),
        (("P-\\d+", "P-("), "tool 1: parameters.part.pattern: .*no pattern"),
        (("[[tool]]", "[other]\n[[tool]]"), "expected .*tool.* tables and nothing else"),
        (("[[tool]]", "[["), "not TOML"),
        (('when = ["stock"', 'when = [" "'), "tool 1: when.0: String should match pattern"),
        (("minimum = 1", "minimum = nan"), "tool 1: parameters.n.minimum: Input should be a finite number"),
        (("minimum = 1", "minimum = 10"), "tool 1: parameters.n: minimum 10 is above maximum 9"),
        (
            ("minimum = 1", "pattern = 'x'"),
            "tool 1: parameters.n: pattern and choices are for strings",
        ),
        (("pattern =", "minimum = 1\npattern ="), "tool 1: parameters.part: minimum and maximum are for numbers"),
    ],
)
def test_a_wrong_declaration_is_one_line_with_its_place(tmp_path: Path, change: tuple[str, str], error: str) -> None:
    path = tmp_path / "tools.toml"
    path.write_text(TOML.format(host=HOST).replace(*change))
    with pytest.raises(ApiError, match=error) as wrong:
        load_apis(path)
    assert str(wrong.value).startswith(str(path))
    assert "\n" not in str(wrong.value)


def test_a_name_is_used_once(tmp_path: Path) -> None:
    path = tmp_path / "tools.toml"
    path.write_text(TOML.format(host=HOST) * 2)
    with pytest.raises(ApiError, match="tool 2: name: 'stock' is used twice"):
        load_apis(path)


def test_a_pattern_may_look_ahead_and_a_parameter_may_have_any_name(tmp_path: Path) -> None:
    path = tmp_path / "tools.toml"
    declared = (
        TOML.format(host=HOST).replace("part", "_model").replace("P-\\d+", "(?=P)P-\\d+").replace(".n]", ".json]")
    )
    path.write_text("\ufeff" + declared, encoding="utf-8")
    tool = load_apis(path)["stock"]
    assert tool.check({"_model": "P-1", "json": 2}) == {"_model": "P-1", "json": 2}
    with pytest.raises(ApiError, match=r"^stock: _model: String should match pattern"):
        tool.check({"_model": "Q-1"})
