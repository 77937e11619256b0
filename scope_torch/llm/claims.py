"""Claims on calls: which store is paying for a call, and whether it still lives."""

from __future__ import annotations

import os
import secrets
import socket
import time
from pathlib import Path

# The stores of this process; a process id does not tell, because a later process may have the same.
_OWNERS: set[str] = set()


def new_owner() -> str:
    """The name of a store of this process: host, process id, start of the process, random text."""
    pid = os.getpid()
    owner = f"{socket.gethostname()} {pid} {_started(pid) or ''}-{secrets.token_hex(8)}"
    _OWNERS.add(owner)
    return owner


def retire(owner: str) -> None:
    """Says that a store of this process pays for nothing any more."""
    _OWNERS.discard(owner)


class ClaimWatch:
    """Watches the claim on one call, and tells when its owner will not finish.

    The owner is a process of this machine: it counts as alive as long as it runs, whatever the age
    of the claim. Elsewhere: until its claim has not been renewed for `limit_s`, counted here from
    the first look, because clocks of two machines differ and may jump.

    Args:
        limit_s: Seconds after which a claim from elsewhere that is not renewed is given up.
    """

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._seen: tuple[str, float] | None = None
        self._since_s = 0.0

    def is_stale(self, owner: str, claimed_at: float) -> bool:
        """Whether the owner of a claim will not finish the call.

        Args:
            owner: Name of the store that claimed the call.
            claimed_at: The time (Unix) at which it claimed, or last renewed, the call.
        """
        alive = _is_alive(owner)
        return self._is_forgotten(owner, claimed_at) if alive is None else not alive

    def _is_forgotten(self, owner: str, claimed_at: float) -> bool:
        now_s = time.monotonic()
        if self._seen != (owner, claimed_at):
            self._seen, self._since_s = (owner, claimed_at), now_s
        return now_s - self._since_s > self._limit_s


def _is_alive(owner: str) -> bool | None:
    """Whether the owner's process runs; None if this cannot be known here."""
    try:
        host, number, token = owner.rsplit(" ", 2)
        pid = int(number)
    except (ValueError, AttributeError):  # a damaged claim
        return None
    if host != socket.gethostname():
        return None
    if pid == os.getpid():
        return owner in _OWNERS
    if os.name == "nt":  # on Windows, signal 0 is Ctrl-C
        return None
    if not _runs(pid):
        return False
    claimed_by, dash, _ = token.partition("-")
    now = _started(pid)  # another process may have the number by now
    return not (dash and claimed_by and now) or now == claimed_by


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:  # it belongs to somebody else
        return True
    return _stat(pid)[:1] not in (["Z"], ["X"])  # ended, but its parent has not asked about it


def _started(pid: int) -> str | None:
    """When a process began, in ticks since the machine did; None if it is not known."""
    values = _stat(pid)
    return values[19] if len(values) > 19 else None


def _stat(pid: int) -> list[str]:
    """State of a process and what Linux tells more about it; empty if it is not known."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    return text.rpartition(")")[2].split()  # the name, in parentheses, may contain spaces
