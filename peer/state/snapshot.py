"""Live state transfer: a donor's immutable copies of `outer_params`, cut in pieces, and a joiner's fetch of one.

Bytes are fp32, little endian, in layout order. A piece is whole tensors up to 16 MiB (`Layout.pieces`)."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from blake3 import blake3

from peer.errors import BadPayload
from peer.protocol.layout import Layout
from peer.protocol.messages import PeerRecord, Piece, StateIndex

HOLD_S = 900.0
"""A snapshot that joiners go on fetching is held this long at most; then it makes room for a fresh one."""
_MAX_ID = 64


class StateSnapshot:
    """A copy of `outer_params` (flat fp32, `layout.elements` long) that later outer steps do not move."""

    def __init__(self, outer_params: torch.Tensor, layout: Layout, round_: int) -> None:
        assert outer_params.dtype == torch.float32, outer_params.dtype
        assert outer_params.shape == (layout.elements,), outer_params.shape
        copy = np.array(outer_params.detach().cpu().numpy(), dtype="<f4", copy=True)
        copy.flags.writeable = False
        whole, self._pieces, pieces = copy.data.cast("B"), [], []
        start = 0
        for first, count, nbytes in layout.pieces():
            view = whole[start : start + nbytes]
            pieces.append(Piece(first, count, nbytes, blake3(view).digest()))
            self._pieces.append(view)
            start += nbytes
        self.index = StateIndex(secrets.token_hex(8), round_, layout.digest(), tuple(pieces))

    def piece(self, number: int) -> memoryview | None:
        """Read-only bytes of a piece; None when there is no such piece."""
        return self._pieces[number] if 0 <= number < len(self._pieces) else None


@dataclass(slots=True)
class _Shelved:
    snapshot: StateSnapshot
    made_at: float
    used_at: float


class SnapshotShelf:
    """What a donor answers from. At most `keep` snapshots in memory, each the size of the model in fp32.

    make: the current `outer_params` (flat fp32; copied here) and the round worked in. now: seconds. A snapshot older
    than `max_age_s` is followed by a fresh one; the former stays for joiners under way. While all places are taken by
    snapshots asked for within `max_age_s`, the newest is offered on, although it is older: a slow joiner is not starved
    by others that come after it, for up to `HOLD_S`."""

    def __init__(
        self,
        make: Callable[[], tuple[torch.Tensor, int]],
        layout: Layout,
        now: Callable[[], float],
        max_age_s: float = 30.0,
        keep: int = 2,
    ) -> None:
        assert keep >= 1, keep
        self._make = make
        self._layout = layout
        self._now = now
        self._max_age_s = max_age_s
        self._keep = keep
        self._shelf: list[_Shelved] = []

    def on_state(self) -> StateIndex:
        """The index of a snapshot to fetch."""
        now = self._now()
        newest = self._shelf[-1] if self._shelf else None
        if newest is None or (now - newest.made_at > self._max_age_s and self._make_room(now)):
            newest = _Shelved(StateSnapshot(*self._copyable()), now, now)
            self._shelf.append(newest)
        return newest.snapshot.index

    def on_piece(self, snapshot: str, piece: int) -> memoryview | None:
        """Read-only bytes; None when the snapshot is gone or has no such piece."""
        for shelved in self._shelf:
            if shelved.snapshot.index.snapshot == snapshot:
                shelved.used_at = self._now()
                return shelved.snapshot.piece(piece)
        return None

    def _copyable(self) -> tuple[torch.Tensor, Layout, int]:
        outer_params, round_ = self._make()
        return outer_params, self._layout, round_

    def _make_room(self, now: float) -> bool:
        """Drop a snapshot nobody fetches from if there is no free place; whether there is one now."""
        if len(self._shelf) < self._keep:
            return True
        for shelved in self._shelf:
            if now - shelved.used_at > self._max_age_s or now - shelved.made_at > HOLD_S:
                self._shelf.remove(shelved)
                return True
        return False


class StateDonor(Protocol):
    """The part of a transport that a joiner needs; both calls are bounded by their timeout."""

    async def describe_state(self, donor: PeerRecord, timeout_s: float) -> StateIndex: ...

    async def fetch_piece(self, donor: PeerRecord, index: StateIndex, piece: int, timeout_s: float) -> bytes: ...


class TransferDeadline:
    """How long a transfer may take: `slack_s` and `factor` times what the slowest measured rate predicts, `floor` bytes
    a second before anything was measured. Rates above `ceiling` are not believed: the first piece may be a burst."""

    def __init__(
        self, slack_s: float = 10.0, factor: float = 4.0, floor: float = 64_000.0, ceiling: float = 2e6
    ) -> None:
        self._slack_s = slack_s
        self._factor = factor
        self._rate = floor
        self._ceiling = ceiling
        self._measured = False

    def seconds(self, nbytes: int) -> float:
        return self._slack_s + self._factor * nbytes / self._rate

    def observe(self, nbytes: int, seconds: float) -> None:
        """A transfer of so many bytes took so long."""
        rate = max(1.0, min(self._ceiling, nbytes / max(seconds, 1e-6)))
        self._rate = min(rate, self._rate) if self._measured else rate
        self._measured = True


async def fetch_state(
    transport: StateDonor,
    donor: PeerRecord,
    layout: Layout,
    deadline: TransferDeadline | None = None,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> tuple[torch.Tensor, int]:
    """A donor's `outer_params` (flat fp32, `layout.elements` long) and the round it worked in. The index is checked
    against the layout before a byte is fetched, each piece for its length, digest and finite values.

    progress(bytes done, bytes in all) is called after each piece. Raises PartnerLost or PartnerRefused as the
    transport does, or BadPayload; then nothing of it may be used."""
    deadline = deadline or TransferDeadline()
    clock = asyncio.get_running_loop()
    index = await transport.describe_state(donor, deadline.seconds(0))
    _check_index(index, layout)
    params = np.empty(layout.elements, dtype="<f4")
    whole, done = params.data.cast("B"), 0
    for number, piece in enumerate(index.pieces):
        began = clock.time()
        data = await transport.fetch_piece(donor, index, number, deadline.seconds(piece.nbytes))
        deadline.observe(piece.nbytes, clock.time() - began)
        _check_piece(data, piece, number)
        whole[done : done + piece.nbytes] = data
        done += piece.nbytes
        progress(done, len(whole))
    return torch.from_numpy(params), index.round


def _check_index(index: StateIndex, layout: Layout) -> None:
    if index.layout_digest != layout.digest():
        raise BadPayload("layout", "the donor's state has another layout of tensors")
    if [(p.first, p.count, p.nbytes) for p in index.pieces] != layout.pieces():
        raise BadPayload("index", "the donor's pieces are not cut as the layout says")
    if any(len(p.digest) != 32 for p in index.pieces) or not 0 < len(index.snapshot) <= _MAX_ID:
        raise BadPayload("index", "the donor's index is malformed")
    if not 0 <= index.round < 2**53:
        raise BadPayload("index", f"the donor names an impossible round: {index.round}")


def _check_piece(data: bytes, piece: Piece, number: int) -> None:
    if len(data) != piece.nbytes:
        raise BadPayload("length", f"piece {number} has {len(data)} bytes instead of {piece.nbytes}")
    if blake3(data).digest() != piece.digest:
        raise BadPayload("digest", f"piece {number} is not what the donor's index says")
    if not np.isfinite(np.frombuffer(data, dtype="<f4")).all():
        raise BadPayload("not_finite", f"piece {number} of the donor's state holds NaN or infinity")
