"""State of one fragment, for a group's member that fell behind.

It is outer_params and then outer_momentum, fp32, little endian, cut into parts of `PIECE_BYTES`. Parts are served like
pieces of a snapshot, under a name that identifies the state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np
import torch
from blake3 import blake3
from torch import Tensor

from peer.errors import BadPayload
from peer.outer.state import OuterState
from peer.protocol.messages import FRAGMENT_PREFIX, PIECE_BYTES, PeerRecord


def name_of(fragment: int, digest: bytes) -> str:
    """Return the name of a fragment's state; `digest` as in `OuterState.digest`."""
    return f"{FRAGMENT_PREFIX}{fragment}:{digest.hex()}"


def part_sizes(elements: int) -> list[int]:
    """Return the bytes of each part of a fragment's params and momentum."""
    total = 8 * elements
    return [min(PIECE_BYTES, total - start) for start in range(0, total, PIECE_BYTES)]


class FragmentShelf:
    """Copy of one fragment that a member serves.

    It is made when the first member asks, and kept until another fragment is asked for. `held` returns the digest of a
    fragment as it is now, or nothing when that is not known. No other state is served, and none during an outer
    step."""

    def __init__(self, outer: OuterState, held: Callable[[int], bytes]) -> None:
        self._outer = outer
        self._held = held
        self._name = ""
        self._copy = memoryview(b"")

    def on_piece(self, snapshot: str, part: int) -> memoryview | None:
        """Return the read-only bytes of a part; None when this is not, or no longer, our state."""
        if snapshot != self._name and not self._make(snapshot):
            return None
        start = part * PIECE_BYTES
        return self._copy[start : start + PIECE_BYTES] if 0 <= start < len(self._copy) else None

    def _make(self, snapshot: str) -> bool:
        """Copy the named fragment, if it is our state. The name is compared first, at no cost."""
        outer = self._outer
        for fragment in range(len(outer.layout.fragments)):
            digest = self._held(fragment)
            if not digest or name_of(fragment, digest) != snapshot or outer.busy:
                continue
            self._name, self._copy = "", memoryview(b"")  # there is room for one
            start, end = outer.layout.fragment_span(fragment)
            whole = np.empty((2, end - start), dtype="<f4")
            whole[0], whole[1] = outer.params[start:end].numpy(), outer.momentum[start:end].numpy()
            whole.flags.writeable = False
            copy = whole.reshape(-1).data.cast("B")
            if blake3(copy).digest() != digest:  # the state moved on, and `held` does not know yet
                return False
            self._name, self._copy = snapshot, copy
            return True
        return False


class PartDonor(Protocol):
    """The part of a transport that catching up needs."""

    async def fetch_part(self, donor: PeerRecord, snapshot: str, part: int, nbytes: int, timeout_s: float) -> bytes: ...


async def fetch_fragment(
    transport: PartDonor,
    donor: PeerRecord,
    fragment: int,
    digest: bytes,
    elements: int,
    timeout_s: Callable[[int], float],
) -> tuple[Tensor, Tensor]:
    """Fetch (outer_params, outer_momentum) of a fragment of `elements`, fp32, with this digest.

    `timeout_s` returns the time for a part of so many bytes. Raises BadPayload, and PartnerLost or PartnerRefused as
    the transport does; `gone` means that the donor has another state by now."""
    name, hasher, whole, done = name_of(fragment, digest), blake3(), np.empty(2 * elements, dtype="<f4"), 0
    into = whole.data.cast("B")
    for part, nbytes in enumerate(part_sizes(elements)):
        data = await transport.fetch_part(donor, name, part, nbytes, timeout_s(nbytes))
        into[done : done + nbytes] = data
        hasher.update(data)
        done += nbytes
    if hasher.digest() != digest:
        raise BadPayload("digest", f"the fragment from {donor.peer_id} does not match its digest")
    if not np.isfinite(whole).all():
        raise BadPayload("not_finite", f"the fragment from {donor.peer_id} holds NaN or infinity")
    values = torch.from_numpy(whole)
    return values[:elements], values[elements:]
