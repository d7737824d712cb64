"""Serves and fetches the state of one fragment, for a group's member that fell behind.

The bytes are outer_params followed by outer_momentum, little-endian fp32, cut into parts of `PIECE_BYTES`. Parts are
served by the same call as the pieces of a snapshot, under a name that contains the state's digest."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from blake3 import blake3
from torch import Tensor

from peer.aio.threads import Offload, Start, at_once, inline
from peer.codes import Code
from peer.errors import BadPayload
from peer.outer.arithmetic import all_finite
from peer.outer.pages import pages
from peer.outer.state import OuterState
from peer.protocol.messages import FRAGMENT_PREFIX, PIECE_BYTES, PeerRecord
from peer.state.unnamed import unnamed


def name_of(fragment: int, digest: bytes) -> str:
    """Return the name under which a fragment's state is served. `digest`: see `OuterState.digest`."""
    return f"{FRAGMENT_PREFIX}{fragment}:{digest.hex()}"


def part_sizes(elements: int) -> list[int]:
    """Return the bytes of each part of a fragment of `elements` parameters."""
    total = 8 * elements
    return [min(PIECE_BYTES, total - start) for start in range(0, total, PIECE_BYTES)]


class FragmentServer:
    """Serves copies of a member's fragments to other members, one fragment at a time.

    A copy is made when the first member asks for it, and retained until another fragment is requested. Only the present
    state of a fragment is copied, and never during an outer step.

    `held`: returns the digest of a fragment's present state; empty: not known. `start`: runs the copying. `folder`:
    where the copy is stored (`peer.state.unnamed`); None: in memory."""

    def __init__(
        self, outer: OuterState, held: Callable[[int], bytes], start: Start = at_once, folder: Path | None = None
    ) -> None:
        self._outer = outer
        self._held = held
        self._start = start
        self._folder = folder
        self._name = ""
        self._copy = memoryview(b"")
        self._making: tuple[str, Future[memoryview | None]] | None = None

    def on_piece(self, snapshot: str, part: int) -> memoryview | None:
        """Return the read-only bytes of a part.

        None: the name is not that of a present state, its copy is still being made, or there is no such part."""
        if snapshot != self._name and self.making(snapshot) is not None:
            return None
        start = part * PIECE_BYTES
        there = snapshot == self._name != "" and 0 <= start < len(self._copy)
        return self._copy[start : start + PIECE_BYTES] if there else None

    def making(self, snapshot: str) -> Future[memoryview | None] | None:
        """Start to copy the named state, if it is the present state of a fragment and not copied yet.

        Returns the future of the copy that is being made, which may be of another state. None: no copy is being
        made."""
        self._collect()
        if self._making is None and snapshot != self._name and (fragment := self._named(snapshot)) is not None:
            self._name = ""
            self._making = snapshot, self._start(partial(self._copied, fragment, self._held(fragment)))
            self._collect()
        return None if self._making is None else self._making[1]

    def _collect(self) -> None:
        if self._making is None or not self._making[1].done():
            return
        (name, making), self._making = self._making, None
        if (copy := making.result()) is not None:
            self._name, self._copy = name, copy

    def _named(self, snapshot: str) -> int | None:
        """Return the fragment whose present state has this name. None: there is no such fragment. Copies nothing."""
        held = ((fragment, self._held(fragment)) for fragment in range(len(self._outer.layout.fragments)))
        return next((f for f, digest in held if digest and name_of(f, digest) == snapshot), None)

    def _copied(self, fragment: int, digest: bytes) -> memoryview | None:
        """Copy a fragment, in any thread. None: its state has another digest or moved meanwhile, or the disk is
        full."""
        self._copy = memoryview(b"")  # frees the former copy here in the thread, because that takes long, too
        outer, begun = self._outer, self._outer.begun
        if outer.busy:
            return None
        start, end = outer.layout.fragment_span(fragment)
        try:
            copy = unnamed(self._folder, 8 * (end - start))
        except OSError:
            return None
        halves = np.frombuffer(copy, "<f4").reshape(2, end - start)
        np.copyto(halves[0], outer.params[start:end].numpy())
        np.copyto(halves[1], outer.momentum[start:end].numpy())
        moved = outer.begun != begun
        return None if moved or blake3(copy).digest() != digest else copy.toreadonly()


class PartDonor(Protocol):
    """The call of a transport that fetches a part."""

    async def fetch_part(self, donor: PeerRecord, snapshot: str, part: int, nbytes: int, timeout_s: float) -> bytes: ...


def _put(into: memoryview, data: bytes) -> None:
    """Copy bytes. numpy releases the interpreter lock meanwhile."""
    np.copyto(np.frombuffer(into, np.uint8), np.frombuffer(data, np.uint8))


async def fetch_fragment(
    transport: PartDonor,
    donor: PeerRecord,
    fragment: int,
    digest: bytes,
    elements: int,
    timeout_s: Callable[[int], float],
    offload: Offload = inline,
    folder: Path | None = None,
) -> tuple[Tensor, Tensor]:
    """Fetch (outer_params, outer_momentum) of a fragment, each flat fp32 with `elements` values.

    `digest`: of the state to fetch. `timeout_s`: returns the timeout of a part, given its number of bytes. `offload`:
    runs checks in a thread. `folder`: where the result is stored; None, or a full disk: in memory.

    Raises BadPayload for values with another digest or that are not finite, and PartnerLost or PartnerRefused as the
    transport does. The refusal code `gone` means that the donor now has another state."""
    try:
        into = unnamed(folder, 8 * elements)
    except OSError:
        into = pages(8 * elements)
    name, done = name_of(fragment, digest), 0
    for part, nbytes in enumerate(part_sizes(elements)):
        data = await transport.fetch_part(donor, name, part, nbytes, timeout_s(nbytes))
        await offload(partial(_put, into[done : done + nbytes], data))
        done += nbytes
    values = torch.frombuffer(into, dtype=torch.float32)
    if await offload(lambda: blake3(into).digest()) != digest:
        raise BadPayload(Code.DIGEST, f"the fragment from {donor.peer_id} does not match its digest")
    if not await offload(lambda: all_finite(values)):
        raise BadPayload(Code.NOT_FINITE, f"the fragment from {donor.peer_id} holds NaN or infinity")
    return values[:elements], values[elements:]
