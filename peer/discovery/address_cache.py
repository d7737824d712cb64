"""Addresses of peers seen lately, and the addresses at which this peer listened, kept on disk.

Only addresses of peers with a valid signed record of the run are cached. A guest of the run (`peer doctor`, `peer
eval`) is a DHT node for a minute only, and its address would stay in tickets after it has ended.

With the cached addresses a peer finds the swarm again when every bootstrap node is gone. With its former listen
addresses it gets the same port after a restart, so that others find it. The cache is a convenience: a damaged file
reads as empty, and a failed write is only logged."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path

from peer.discovery.multiaddr import is_dialable, is_listenable
from peer.whole_files import replace_file

MAX_CACHED = 64
MAX_AGE_S = 30 * 86400.0
MAX_LISTENED = 16
_MAX_FILE_BYTES = 64 * 1024

log = logging.getLogger(__name__)


class AddressCache:
    """Map from address to the time it was last seen, for the latest `MAX_CACHED`. Without a path it is kept in memory
    only."""

    def __init__(self, path: Path | None, now: float) -> None:
        self._path = path
        self._seen, self._recorded, self.listened = _read(path, now) if path is not None else ({}, set(), {})
        """`_recorded`: the addresses that were of a peer with a record. Earlier versions kept others, too."""
        """`listened`: requested listen address (with port 0) -> the same address with the port that the system
        chose."""
        self._saved = self._content()

    def addresses(self) -> list[str]:
        """Return the addresses to dial, latest seen first."""
        return sorted(self._seen, key=lambda address: (-self._seen[address], address))

    def entries(self) -> list[str]:
        """Return the addresses of peers that had a record, latest seen first. Only these may be put into a ticket."""
        return [address for address in self.addresses() if address in self._recorded]

    def record_seen(self, addresses: Iterable[str], now: float) -> None:
        """Record that these addresses of peers with a valid record are in use now."""
        found = [address for address in addresses if is_dialable(address)]
        self._seen.update((address, now) for address in found)
        kept = [address for address in self.addresses() if self._seen[address] > now - MAX_AGE_S][:MAX_CACHED]
        self._seen = {address: self._seen[address] for address in kept}
        self._recorded = self._recorded.union(found).intersection(kept)

    def note_listened(self, listened: dict[str, str]) -> None:
        """Set the addresses at which this peer listens now; `save` writes them."""
        self.listened = listened

    def save(self, force: bool = False) -> None:
        """Write the file if an address was added or dropped since the last write, or with `force`."""
        if self._path is None or (self._saved == self._content() and not force):
            return
        body = [
            {"address": address, "seen": self._seen[address], "record": address in self._recorded}
            for address in self.addresses()
        ]
        try:
            whole = {"format": 1, "listened": self.listened, "peers": body}
            replace_file(self._path, f"{json.dumps(whole, indent=1)}\n".encode())
        except OSError as error:
            log.warning("cannot keep the addresses of other peers in %s: %s", self._path, error.strerror)
            return
        self._saved = self._content()

    def _content(self) -> frozenset[object]:
        return frozenset([*self._seen, *self.listened.items(), *((address, True) for address in self._recorded)])


def _read(path: Path, now: float) -> tuple[dict[str, float], set[str], dict[str, str]]:
    try:
        with path.open("rb") as file:
            raw = file.read(_MAX_FILE_BYTES)
        return *parse(raw, now), parse_listened(raw)
    except FileNotFoundError:
        return {}, set(), {}
    except (OSError, ValueError) as error:
        log.warning("the cached addresses in %s cannot be read, starting without: %s", path, error)
        return {}, set(), {}


def parse(raw: bytes, now: float) -> tuple[dict[str, float], set[str]]:
    """Parse the peers of a cache file. Return address -> time last seen for dialable addresses that are not too old,
    and the set of those whose peers had a record.

    Raises ValueError for content that `save` would not write. `now`: seconds since the epoch."""
    try:
        entries = json.loads(raw)["peers"][:MAX_CACHED]
        seen = {str(entry["address"]): min(float(entry["seen"]), now) for entry in entries}
        recorded = {str(entry["address"]) for entry in entries if entry.get("record") is True}
    except (TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError("it holds no list of addresses") from error
    kept = {address: at for address, at in seen.items() if is_dialable(address) and at > now - MAX_AGE_S}
    return kept, recorded & kept.keys()


def parse_listened(raw: bytes) -> dict[str, str]:
    """Parse the listen addresses of a cache file: requested address with port 0 -> address with the port that was
    found.

    Raises ValueError for content that `save` would not write."""
    try:
        entries = list(json.loads(raw).get("listened", {}).items())[:MAX_LISTENED]
    except (TypeError, AttributeError, RecursionError) as error:
        raise ValueError("it holds no list of addresses") from error
    return {
        told: found
        for told, found in entries
        if told.endswith("/tcp/0") and isinstance(found, str) and is_listenable(found) and found.startswith(told[:-1])
    }
