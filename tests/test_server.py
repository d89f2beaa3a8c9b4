import gc
import json
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import chromadb
import httpx
import pytest
from chromadb.api import ClientAPI
from fake_embedder import HashEmbedder

from retrievers import IndexNotFound, build_index, open_index
from retrievers.build import delete_documents
from retrievers.dense import ServerError
from retrievers.doctor import examine
from retrievers.embedders import Vectors
from retrievers.manifest import IndexMismatch
from retrievers.server import AddressError, ChromaServer, parse_address

# Chroma's HTTP client leaves its sockets to the garbage collector when the server refuses it.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    port = free_port()
    command = [str(Path(sys.executable).parent / "chroma"), "run", "--path", str(tmp_path_factory.mktemp("server"))]
    process = subprocess.Popen(
        [*command, "--host", "127.0.0.1", "--port", str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    address = f"http://127.0.0.1:{port}"
    try:
        for _ in range(240):
            try:
                urllib.request.urlopen(f"{address}/api/v2/heartbeat", timeout=1).close()
                break
            except OSError:
                time.sleep(0.25)
        else:
            pytest.fail("the Chroma server did not start")
        yield address
    finally:
        process.terminate()
        process.wait()
        gc.collect()  # while the filter above still holds


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def connect(server: str) -> ClientAPI:
    host, port = server.removeprefix("http://").split(":")
    return chromadb.HttpClient(host, int(port))


def write(path: Path, **texts: str) -> Path:
    lines = [
        {"id": k, "title": f"T {k}", "text": v, "metadata": {"product": k[0], "year": 2024}} for k, v in texts.items()
    ]
    path.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    return path


def test_an_index_on_a_server_answers_as_one_in_a_folder(server: str, tmp_path: Path, cache: Path) -> None:
    long = " ".join(f"Sentence {n} about gears and belts." for n in range(300))
    corpus = write(tmp_path / "c.jsonl", a="voltage too low", b="请先断电，然后打开盖子。", c=long)
    address = f"{server}/same"
    build_index(corpus, address, HashEmbedder())
    build_index(corpus, tmp_path / "i", HashEmbedder())
    local = open_index(tmp_path / "i", HashEmbedder())
    for fresh in (False, True):
        if fresh:
            shutil.rmtree(cache)  # another machine: everything comes from the server
        remote = open_index(address, HashEmbedder())
        assert remote.manifest.corpus_version == local.manifest.corpus_version
        for query in ("voltage", "打开盖子", "gears and belts"):
            for mode in ("keyword", "dense", "hybrid"):
                ours = [(h.passage, round(h.score, 4)) for h in remote.search(query, k=5, mode=mode)]
                assert ours == [(h.passage, round(h.score, 4)) for h in local.search(query, k=5, mode=mode)]
        assert remote.passages_of("c") == local.passages_of("c")
        found = remote.search("voltage", filters={"product": "b", "year": {"gte": 2024}})
        assert {hit.passage.doc_id for hit in found} == {"b"}
    assert [
        finding for finding in examine(address, HashEmbedder()) if not finding.ok and finding.check != "stale"
    ] == []


def test_a_build_on_a_server_is_incremental_and_other_machines_see_it(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = f"{server}/grows"
    corpus = write(tmp_path / "c.jsonl", a="alpha", b="beta")
    build_index(corpus, address, HashEmbedder())
    assert build_index(corpus, address, HashEmbedder()).unchanged
    before = open_index(address, HashEmbedder())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "other machine"))
    embedder = HashEmbedder()
    build_index(write(corpus, a="alpha", c="gamma"), address, embedder)
    assert [text.splitlines()[-1] for text in embedder.embedded] == ["gamma"]
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    after = open_index(address, HashEmbedder())
    assert {hit.passage.doc_id for hit in after.search("gamma alpha", mode="dense")} == {"a", "c"}
    assert {hit.passage.doc_id for hit in before.search("beta alpha", mode="dense")} == {"a", "b"}


def test_a_reader_whose_collection_two_later_builds_dropped_still_finds_what_it_opened(
    server: str, tmp_path: Path
) -> None:
    address = f"{server}/drops"
    corpus = write(tmp_path / "c.jsonl", a="alpha", b="beta")
    build_index(corpus, address, HashEmbedder())
    used, unused = open_index(address, HashEmbedder()), open_index(address, HashEmbedder())
    assert used.search("alpha", k=1, mode="dense")[0].passage.doc_id == "a"
    for n in range(2):
        build_index(write(corpus, a=f"gamma {n}", b=f"delta {n}"), address, HashEmbedder())
    for index in (used, unused):
        assert index.search("T b beta", k=1, mode="dense")[0].passage.text == "beta"
    names = [collection.name for collection in connect(server).list_collections()]
    assert len([name for name in names if name.startswith("drops")]) == 3  # the last, the one before, which is current


def test_a_mirror_is_never_less_than_what_the_server_is_said_to_hold(server: str, tmp_path: Path, cache: Path) -> None:
    address = f"{server}/short"
    build_index(write(tmp_path / "c.jsonl", **{f"d{n}": f"word{n}" for n in range(40)}), address, HashEmbedder())
    shutil.rmtree(cache)
    [name] = [one.name for one in connect(server).list_collections() if one.name.startswith("short.")]
    collection = connect(server).get_collection(name, embedding_function=None)
    whole = collection.get(ids=["d7#0"], include=["metadatas", "documents", "embeddings"])
    collection.delete(ids=["d7#0"])
    with pytest.raises(ServerError, match="39 of 40 passages"):
        open_index(address)
    collection.add(**{key: whole[key] for key in ("ids", "metadatas", "documents", "embeddings")})
    assert open_index(address).passage("d7#0").text == "word7"


def test_of_two_processes_that_mirror_an_index_the_second_waits_and_reads_nothing_again(
    server: str, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    address = f"{server}/both"
    build_index(write(tmp_path / "c.jsonl", a="alpha"), address, HashEmbedder())
    shutil.rmtree(cache)
    read: list[Path] = []
    original = ChromaServer._read_documents

    def note(self: ChromaServer, generation: Path) -> object:
        read.append(generation)
        other = threading.Thread(target=lambda: found.append(open_index(address).passage("a#0").text))
        others.append(other)
        other.start()
        while not caplog.records:  # until it waits
            time.sleep(0.01)
        return original(self, generation)

    found: list[str] = []
    others: list[threading.Thread] = []
    monkeypatch.setattr(ChromaServer, "_read_documents", note)
    assert open_index(address).passage("a#0").text == "alpha"
    for other in others:
        other.join()
    assert (found, len(read)) == (["alpha"], 1)
    assert "waiting for process" in caplog.text


def test_a_server_that_goes_while_an_index_is_built_is_one_clear_line(tmp_path: Path, server: str) -> None:
    address = f"{server}/stops"

    class Dropping(HashEmbedder):
        def embed_documents(self, texts: list[str]) -> Vectors:
            for one in connect(server).list_collections():
                if one.name.startswith("stops."):
                    connect(server).delete_collection(one.name)
            return super().embed_documents(texts)

    with pytest.raises(ServerError, match="another build has replaced it"):
        build_index(write(tmp_path / "c.jsonl", a="alpha"), address, Dropping())


def test_errors_are_one_clear_line(server: str, tmp_path: Path) -> None:
    with pytest.raises(IndexNotFound, match="no such collection"):
        open_index(f"{server}/none")
    with pytest.raises(ServerError, match=r"127\.0\.0\.1"):
        open_index(f"http://127.0.0.1:{free_port()}/any")
    with pytest.raises(ServerError):
        open_index(f"{server}/any?tenant=nobody")
    for wrong in (server, f"{server}/abc/def", f"{server}/abc?user=x", f"{server}/ab"):
        with pytest.raises(AddressError):
            open_index(wrong)


def test_a_collection_of_somebody_else_is_no_index_and_is_left_alone(server: str, tmp_path: Path) -> None:
    connect(server).create_collection("foreign", metadata={"owner": "somebody"}, embedding_function=None)
    with pytest.raises(IndexNotFound, match="no index of this project"):
        open_index(f"{server}/foreign")
    with pytest.raises(IndexNotFound, match="no index of this project; name another"):
        build_index(write(tmp_path / "c.jsonl", a="alpha"), f"{server}/foreign", HashEmbedder())
    assert connect(server).get_collection("foreign", embedding_function=None).metadata == {"owner": "somebody"}


@pytest.mark.parametrize("loss", ["collection", "format"])
def test_an_index_that_a_server_lost_or_cannot_give_is_built_anew_from_what_is_embedded_here(
    server: str, tmp_path: Path, loss: str
) -> None:
    address, corpus = f"{server}/lost-{loss}", write(tmp_path / "c.jsonl", a="alpha", b="beta")
    build_index(corpus, address, HashEmbedder())
    if loss == "collection":
        for collection in connect(server).list_collections():
            if collection.name.startswith("lost-"):
                connect(server).delete_collection(collection.name)
        with pytest.raises(IndexNotFound):
            delete_documents(address, ["a"], HashEmbedder())
    else:
        pointer = connect(server).get_collection("lost-format", embedding_function=None)
        manifest = {**json.loads(pointer.metadata["manifest"]), "format": 0}
        pointer.modify(metadata={**pointer.metadata, "manifest": json.dumps(manifest)})
        with pytest.raises(IndexMismatch, match="another format; build it again"):
            open_index(address)
    report = build_index(corpus, address, HashEmbedder())
    assert (report.unchanged, report.n_embedded) == (False, 0)
    assert open_index(address, HashEmbedder()).search("alpha", mode="dense")[0].passage.doc_id == "a"


def test_a_server_that_goes_before_a_build_ends_is_one_clear_line(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: object, *args: object, **kwargs: object) -> None:
        raise httpx.ConnectError("[Errno 111] Connection refused")

    address, corpus = f"{server}/ends", write(tmp_path / "c.jsonl", a="alpha")
    with monkeypatch.context() as patch:
        patch.setattr("chromadb.api.client.Client.create_collection", refuse)
        with pytest.raises(ServerError, match=r"ends: .Errno 111. Connection refused; repeat the command"):
            build_index(corpus, address, HashEmbedder())
    assert build_index(corpus, address, HashEmbedder()).n_embedded == 0


def test_token_tenant_and_database_reach_the_server(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from chromadb.config import Settings

    host, port = server.removeprefix("http://").split(":")
    settings = Settings(
        chroma_api_impl="chromadb.api.fastapi.FastAPI", chroma_server_host=host, chroma_server_http_port=port
    )
    admin = chromadb.AdminClient(settings)
    admin.create_tenant("acme")
    admin.create_database("docs", "acme")

    class Gate(BaseHTTPRequestHandler):
        """Lets requests with the token through to the server."""

        protocol_version = "HTTP/1.1"

        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            if self.headers.get("x-chroma-token") != "secret":
                self.answer(401, b'{"error": "AuthError", "message": "wrong token"}', "application/json")
                return
            headers = {"content-type": self.headers.get("content-type") or "application/json"}
            request = urllib.request.Request(server + self.path, body or None, headers, method=self.command)
            try:
                with urllib.request.urlopen(request) as reply:
                    self.answer(reply.status, reply.read(), reply.headers.get("content-type"))
            except urllib.error.HTTPError as error:
                self.answer(error.code, error.read(), error.headers.get("content-type"))

        def answer(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("content-type", kind or "text/plain")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = forward  # noqa: N815

        def log_message(self, *args: object) -> None:
            pass

    gate = ThreadingHTTPServer(("127.0.0.1", 0), Gate)
    threading.Thread(target=gate.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{gate.server_port}/wiki?tenant=acme&database=docs"
    try:
        with pytest.raises(ServerError):
            open_index(address)
        monkeypatch.setenv("CHROMA_TOKEN", "secret")
        build_index(write(tmp_path / "c.jsonl", a="alpha"), address, HashEmbedder())
        assert open_index(address, HashEmbedder()).search("alpha")[0].passage.doc_id == "a"
    finally:
        gate.shutdown()
        gate.server_close()
    names = {
        collection.name
        for collection in chromadb.HttpClient(host, int(port), tenant="acme", database="docs").list_collections()
    }
    assert "wiki" in names
    monkeypatch.delenv("CHROMA_TOKEN")
    with pytest.raises(IndexNotFound):
        open_index(f"{server}/wiki")


def test_addresses_name_scheme_port_tenant_and_database() -> None:
    address = parse_address("https://api.example.org/wiki?tenant=t&database=d")
    assert (address.ssl, address.host, address.port) == (True, "api.example.org", 443)
    assert (address.collection, address.tenant, address.database) == ("wiki", "t", "d")
    assert parse_address("http://localhost/wiki").port == 8000
