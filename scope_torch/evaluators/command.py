"""A program as an application."""

from __future__ import annotations

import json
import os
import re
import selectors
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from scope_torch.errors import InputError

_MAX_ERROR_CHARS = 500
_KEY = re.compile(r"-{0,2}[\w-]*(key|token|secret|password|auth(orization)?)", re.IGNORECASE)
_HEADER = re.compile(rf"({_KEY.pattern}: ?)(?![ {{]).+", re.IGNORECASE | re.DOTALL)
_MOST_BYTES = 16 * 2**20  # that are kept of what a program prints, or read of its file
_LONGEST_ARGUMENT = 128 * 1024 - 1  # bytes; Linux refuses longer ones
_PIPE_BYTES = 2**20  # more than a pipe holds
_LOOK_S = 0.05  # how often to see whether a program has ended whose child holds its output


class Command:
    """A program as an application: one process for each input.

    It runs without a shell. The output is the last line that it prints, or the content of the file
    `{output}`, as UTF-8; what is none becomes U+FFFD. A child that the program leaves behind is not
    waited for.

    Args:
        command: The program and its arguments, as one text or as a list. `{input}` stands for the
            input, `{output}` for the path of a file that the program writes. Without `{input}` the
            program reads the input from standard input. An input that is not text becomes JSON.
        timeout_s: The program is killed after so many seconds.

    Raises:
        InputError: If the command is empty, or a quote in it does not end.

    Examples:
        >>> Command("echo the answer to {input}")("6 x 7")
        'the answer to 6 x 7'
    """

    def __init__(self, command: str | Sequence[str], timeout_s: float = 600.0) -> None:
        try:
            self._words = shlex.split(command) if isinstance(command, str) else list(command)
        except ValueError as error:
            raise InputError(f"the command {command!r:.80} cannot be read: {error}") from None
        if not self._words:
            raise InputError("the command is empty; say for example 'python app.py {input}'")
        self._timeout_s = timeout_s
        self.__qualname__ = " ".join(without_keys(self._words))

    def __call__(self, value: Any, environment: Mapping[str, str] | None = None) -> str:
        """Runs the program.

        Args:
            value: The input.
            environment: Variables besides those of this process, such as `OPENAI_BASE_URL`.

        Raises:
            InputError: If the input cannot be an argument, or the program cannot be started.
            RuntimeError: If it fails, takes too long, or prints nothing, or a line without end.
        """
        with _before_it_runs(self._words[0]):
            place = tempfile.TemporaryDirectory()
        with place as folder:
            path = Path(folder) / "output"
            words = self.words(value, str(path))
            given = "" if self._has("{input}") else _text_of(value)
            printed = self._run(words, given.encode(errors="replace"), environment or {})
            return self._content(path) if self._has("{output}") else self._last_line(printed)

    def words(self, value: Any, output: str = "") -> list[str]:
        """The program and its arguments for an input.

        Raises:
            InputError: If the input cannot be an argument.
        """
        # Half of a surrogate pair can be in no argument.
        text = _text_of(value).encode(errors="replace").decode()
        words = [_filled(word, {"{input}": text, "{output}": output}) for word in self._words]
        longest = max(len(word.encode()) for word in words)
        if longest > _LONGEST_ARGUMENT or any("\0" in word for word in words):
            reason = (
                f"{longest:,} bytes, and an argument takes at most {_LONGEST_ARGUMENT:,}"
                if longest > _LONGEST_ARGUMENT
                else "a zero byte, which ends an argument"
            )
            raise InputError(
                f"the input {text!r:.60} would have {reason}; leave {{input}} out of the command: "
                "the program then reads its standard input, which takes any"
            )
        return words

    def _has(self, placeholder: str) -> bool:
        return any(placeholder in word for word in self._words)

    def _run(self, words: list[str], given: bytes, environment: Mapping[str, str]) -> bytes:
        """The end of what the program prints."""
        with _before_it_runs(words[0]), tempfile.TemporaryFile() as source:
            source.write(given)  # a file takes all at once, as a pipe does not
            source.seek(0)
            # A session of its own: Ctrl-C ends the search after the calls in flight, not these.
            process = subprocess.Popen(
                words,
                stdin=source,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                env={**os.environ, **environment},
                start_new_session=True,
            )
        assert process.stdout is not None
        assert process.stderr is not None
        with process.stdout as stdout, process.stderr as stderr:
            try:
                printed, errors = _until_it_ends(process, (stdout, stderr), self._timeout_s)
            except BaseException as error:
                with suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, signal.SIGKILL)  # also what it has started
                process.wait()
                if isinstance(error, TimeoutError):
                    raise RuntimeError(f"{words[0]} took more than {self._timeout_s:g} s") from None
                raise
        if process.returncode:
            tail = _decoded(errors).strip()[-_MAX_ERROR_CHARS:]
            raise RuntimeError(f"{words[0]} ended with status {process.returncode}: {tail}")
        return printed

    def _last_line(self, printed: bytes) -> str:
        # Not splitlines(), which also splits at characters that may be part of an answer.
        _, newline, line = _decoded(printed).strip().rpartition("\n")
        if not line:
            raise RuntimeError(f"{self._words[0]} printed nothing; its last line is its answer")
        if not newline and len(printed) == _MOST_BYTES:
            raise RuntimeError(f"{self._words[0]} printed a line of {_MOST_BYTES:,} bytes or more")
        return line

    def _content(self, path: Path) -> str:
        try:
            with path.open("rb") as file:
                content = file.read(_MOST_BYTES + 1)
        except FileNotFoundError:
            raise RuntimeError(
                f"{self._words[0]} did not write the file given for {{output}}"
            ) from None
        if len(content) > _MOST_BYTES:
            raise RuntimeError(f"{self._words[0]} wrote more than {_MOST_BYTES:,} bytes")
        return _decoded(content)


@contextmanager
def _before_it_runs(program: str) -> Generator[None, None, None]:
    """What this machine lacks, as on a full disk, ends the search: it is no answer of quality 0."""
    try:
        yield
    except OSError as error:
        raise InputError(f"cannot run {program!r:.80}: {error.strerror or error}") from error


def _until_it_ends(
    process: subprocess.Popen[bytes], streams: tuple[IO[bytes], IO[bytes]], timeout_s: float
) -> list[bytes]:
    """The ends of what a program prints to its streams.

    A child that it leaves behind may hold them open. So what counts is that the program has ended.

    Raises:
        TimeoutError: If it takes longer.
    """
    kept = {stream: bytearray() for stream in streams}

    def take(stream: Any) -> bool:
        """Reads what is there; False at the end of the stream."""
        try:
            found = os.read(stream.fileno(), _PIPE_BYTES)
        except BlockingIOError:
            return True
        kept[stream] += found
        del kept[stream][:-_MOST_BYTES]
        return bool(found)

    ends_at = time.monotonic() + timeout_s
    with selectors.DefaultSelector() as selector:
        for stream in streams:
            os.set_blocking(stream.fileno(), False)
            selector.register(stream, selectors.EVENT_READ)
        while process.poll() is None:
            if time.monotonic() > ends_at:
                raise TimeoutError
            if not selector.get_map():  # both are closed
                with suppress(subprocess.TimeoutExpired):
                    process.wait(_LOOK_S)
                continue
            for key, _ in selector.select(_LOOK_S):
                if not take(key.fileobj):
                    selector.unregister(key.fileobj)
    for stream in streams:  # what it printed last
        take(stream)
    return [bytes(content) for content in kept.values()]


def _text_of(value: Any) -> str:
    try:
        return value if isinstance(value, str) else json.dumps(value)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the input {value!r:.80} of the command is neither text nor JSON ({error}); give one"
        ) from error


def _decoded(content: bytes) -> str:
    return content.decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")


def _filled(word: str, names: Mapping[str, str]) -> str:
    """A word of a command with its placeholders; a placeholder inside an input stays as it is."""
    parts = [part.replace("{input}", names["{input}"]) for part in word.split("{output}")]
    return names["{output}"].join(parts)


def without_keys(words: Sequence[str]) -> list[str]:
    """The words of a command with `***` for keys, as this name goes into files and onto pages.

    Examples:
        >>> without_keys(["env", "API_KEY=abc", "app", "--token", "abc", "--max-tokens", "5"])
        ['env', 'API_KEY=***', 'app', '--token', '***', '--max-tokens', '5']
        >>> without_keys(["curl", "-H", "Authorization: Bearer abc", "-H", "Accept: text"])
        ['curl', '-H', 'Authorization: ***', '-H', 'Accept: text']
        >>> without_keys(["app", "--header=X-Api-Key: abc", "key: {input}"])
        ['app', '--header=X-Api-Key: ***', 'key: {input}']
    """
    shown = list[str]()
    for word, before in zip(words, ["", *words], strict=False):
        name, equals, value = word.partition("=")
        if equals and _KEY.fullmatch(name):
            word = f"{name}=***"
        elif _HEADER.match(value if equals else word):
            word = _HEADER.sub(r"\1***", word, count=1)
        elif before.startswith("-") and _KEY.fullmatch(before) and not word.startswith("{"):
            word = "***"
        shown.append(word)
    return shown
