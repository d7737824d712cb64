"""Encoding of the rosters that a peer stores over a restart, for all fragments. Without them, an isolated part of a
group that restarts would take itself for the whole group (`peer.protocol.group.quorum`). The format is compact JSON:
each peer id occurs once, and rosters are indices into the list of ids."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from peer.protocol.group.quorum import KEPT, SIZES, Quorum, Rosters
from peer.protocol.group.roster import MAX_MEMBERS
from peer.protocol.messages import MAX_ROUND, PeerId

FORMAT = 1
MAX_BYTES = 4 * 2**20
"""Larger encodings are not decoded. 64 members in 11 rosters of 1000 fragments need less."""
MAX_SEEN = 2**20
"""Largest number of seen peers that is decoded."""
_MAX_ID = 64


def pack(quorums: Sequence[Quorum]) -> bytes:
    """Encode the rosters for `unpack`."""
    index: dict[PeerId, int] = {}
    fragments = []
    for quorum in quorums:
        kept = quorum.remembered()
        rosters = [[round_, [index.setdefault(p, len(index)) for p in members]] for round_, members in kept.rosters]
        fragments.append({"rosters": rosters, "sizes": list(kept.sizes), "seen": list(kept.seen)})
    body = {"format": FORMAT, "ids": list(index), "fragments": fragments}
    return json.dumps(body, separators=(",", ":")).encode()


def unpack(raw: bytes, fragments: int) -> list[Rosters]:
    """Decode the rosters of each fragment. Raises ValueError for anything that `pack` would not return for this number
    of fragments."""
    if len(raw) > MAX_BYTES:
        raise ValueError(f"{len(raw)} bytes")
    try:
        body = json.loads(raw)
        ids = [_id(text) for text in body["ids"]]
        found = [_rosters(entry, ids) for entry in body["fragments"]]
    except (TypeError, KeyError, IndexError, RecursionError) as error:
        raise ValueError(f"not a group's memory: {error!r}") from error
    if body["format"] != FORMAT or len(found) != fragments:
        raise ValueError("of another format or layout")
    return found


def _rosters(entry: Any, ids: Sequence[PeerId]) -> Rosters:
    rosters = tuple((_number(round_, MAX_ROUND), _members(indices, ids)) for round_, indices in entry["rosters"])
    sizes = tuple(_number(size, MAX_MEMBERS) for size in entry["sizes"])
    seen = tuple(_number(count, MAX_SEEN) for count in entry["seen"])
    if len(rosters) > KEPT or len(sizes) > SIZES or len(seen) > SIZES:
        raise ValueError("more rosters than are kept")
    return Rosters(rosters, sizes, seen)


def _members(indices: Any, ids: Sequence[PeerId]) -> tuple[PeerId, ...]:
    if not 0 < len(indices) <= MAX_MEMBERS:
        raise ValueError("members")
    return tuple(sorted({ids[_number(index, len(ids) - 1)] for index in indices}))


def _number(value: Any, most: int) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError("number")
    return value


def _id(text: Any) -> PeerId:
    if not (isinstance(text, str) and 0 < len(text) <= _MAX_ID and text.isascii() and text.isprintable()):
        raise ValueError("id")
    return PeerId(text)
