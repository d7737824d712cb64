"""DHT addresses seen lately, kept on disk: with them a peer finds the swarm again when every bootstrap node is dead.
A convenience, never trusted and never needed: a damaged file reads as empty, a failed write costs a line in the log."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable
from pathlib import Path

from peer.net.directory.address import is_dialable

MAX_CACHED = 64
MAX_AGE_S = 30 * 86400.0
_MAX_FILE_BYTES = 64 * 1024

log = logging.getLogger(__name__)


class AddressCache:
    """`address -> last seen`, the latest `MAX_CACHED`. Without a path it lives in memory only."""

    def __init__(self, path: Path | None, now: float) -> None:
        self._path = path
        self._seen = _read(path, now) if path is not None else {}
        self._saved = frozenset(self._seen)

    def addresses(self) -> list[str]:
        """Latest seen first."""
        return sorted(self._seen, key=lambda address: (-self._seen[address], address))

    def saw(self, addresses: Iterable[str], now: float) -> None:
        """Note that these are in use right now."""
        self._seen.update((address, now) for address in addresses if is_dialable(address))
        kept = [address for address in self.addresses() if self._seen[address] > now - MAX_AGE_S][:MAX_CACHED]
        self._seen = {address: self._seen[address] for address in kept}

    def save(self, force: bool = False) -> None:
        """Write the file if the set of addresses has changed since the last time (`force`: in any case)."""
        if self._path is None or (self._saved == frozenset(self._seen) and not force):
            return
        draft = self._path.with_name(f".{self._path.name}.new")
        body = [{"address": address, "seen": self._seen[address]} for address in self.addresses()]
        try:
            draft.write_text(json.dumps({"format": 1, "peers": body}, indent=1) + "\n", encoding="utf-8")
            os.replace(draft, self._path)  # noqa: PTH105  (the atomic call, by its name)
        except OSError as error:
            log.warning("cannot keep the addresses of other peers in %s: %s", self._path, error.strerror)
            return
        self._saved = frozenset(self._seen)


def _read(path: Path, now: float) -> dict[str, float]:
    try:
        with path.open("rb") as file:
            entries = json.loads(file.read(_MAX_FILE_BYTES))["peers"][:MAX_CACHED]
        seen = {str(entry["address"]): min(float(entry["seen"]), now) for entry in entries}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        log.warning("the cached addresses in %s cannot be read, starting without: %r", path, error)
        return {}
    return {address: at for address, at in seen.items() if is_dialable(address) and at > now - MAX_AGE_S}
