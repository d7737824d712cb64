"""A donor's immutable copies of its outer state, cut in pieces, and a plain fetch of one from one donor.

Bytes are fp32, little endian, in layout order: `outer_params`, and in groups `outer_momentum` after it, cut alike
(`Layout.pieces`). A group's snapshot is named by its bytes, so that members of one state offer one snapshot: a donor
copies between two outer steps, and asked to (`fresh`) copies anew what has moved on. No other agreement is needed."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np
import torch
from blake3 import blake3

from peer.errors import BadPayload
from peer.outer.state import OuterState
from peer.protocol.messages import Piece, StateIndex
from peer.protocol.model.layout import Layout

HOLD_S = 900.0
"""A snapshot that joiners go on fetching is held this long at most; then it makes room for a fresh one."""
FRESH_EVERY_S = 1.0
"""A fresh snapshot is made no oftener than this, whoever asks."""
_MAX_ID = 64


class StateSnapshot:
    """A copy of `outer_params` and, in groups, `outer_momentum` (each flat fp32, `layout.elements` long) that later
    outer steps do not move."""

    def __init__(
        self, outer_params: torch.Tensor, layout: Layout, round_: int, momentum: torch.Tensor | None = None
    ) -> None:
        self._pieces: list[memoryview] = []
        pieces: list[Piece] = []
        for values in (outer_params,) if momentum is None else (outer_params, momentum):
            whole, start = _copied(values, layout), 0
            for first, count, nbytes in layout.pieces():
                view = whole[start : start + nbytes]
                pieces.append(Piece(first, count, nbytes, blake3(view).digest()))
                self._pieces.append(view)
                start += nbytes
        name = secrets.token_hex(8) if momentum is None else mark_of(pieces)
        self.index = StateIndex(name, round_, layout.digest(), tuple(pieces))

    def piece(self, number: int) -> memoryview | None:
        """Read-only bytes of a piece; None when there is no such piece."""
        return self._pieces[number] if 0 <= number < len(self._pieces) else None


def mark_of(pieces: Sequence[Piece]) -> str:
    """Names a state by its bytes; hex."""
    return blake3(b"".join(piece.digest for piece in pieces)).hexdigest()[:32]


def _copied(values: torch.Tensor, layout: Layout) -> memoryview:
    assert values.dtype == torch.float32, values.dtype
    assert values.shape == (layout.elements,), values.shape
    copy = np.array(values.detach().cpu().numpy(), dtype="<f4", copy=True)
    copy.flags.writeable = False
    return copy.data.cast("B")


def copy_of(outer: OuterState, round_: int, *, momentum: bool) -> StateSnapshot | None:
    """A snapshot between two outer steps; None: one was under way, or began meanwhile. In any thread."""
    begun = outer.begun
    if outer.busy:
        return None
    snapshot = StateSnapshot(outer.params, outer.layout, round_, outer.momentum if momentum else None)
    return None if outer.begun != begun else snapshot


Start = Callable[[Callable[[], StateSnapshot | None]], "Future[StateSnapshot | None]"]
"""Begins work in a thread of low priority."""


def at_once(work: Callable[[], StateSnapshot | None]) -> Future[StateSnapshot | None]:
    """A `Start` for small states and virtual time: in the caller's own thread."""
    future: Future[StateSnapshot | None] = Future()
    future.set_result(work())
    return future


@dataclass(slots=True)
class _Shelved:
    snapshot: StateSnapshot
    made_at: float
    used_at: float


class SnapshotCache:
    """What a donor answers from. At most `keep` snapshots in memory, each the size of the state in fp32.

    make: copies the current state; None: not now. now: seconds. A snapshot older than `max_age_s` is followed by a
    fresh one; the former stays for joiners under way. While all places are taken by snapshots asked for within
    `max_age_s`, the newest is offered on, although it is older: a slow joiner is not starved by others that come after
    it, for up to `HOLD_S`."""

    def __init__(
        self,
        make: Callable[[], StateSnapshot | None],
        now: Callable[[], float],
        start: Start = at_once,
        max_age_s: float = 30.0,
        keep: int = 2,
    ) -> None:
        assert keep >= 1, keep
        self._make = make
        self._now = now
        self._start = start
        self._max_age_s = max_age_s
        self._keep = keep
        self._shelf: list[_Shelved] = []
        self._making: Future[StateSnapshot | None] | None = None

    def on_state(self, fresh: bool = False, wanted: str = "") -> StateIndex | None:
        """The index of a snapshot to fetch; None while it is being made: ask again. `fresh`: not the one before, if
        the state has moved on. `wanted`: this one, if it is still kept."""
        now = self._now()
        self._collect(now)
        for shelved in self._shelf:
            if shelved.snapshot.index.snapshot == wanted:
                shelved.used_at = now
                return shelved.snapshot.index
        newest = self._shelf[-1] if self._shelf else None
        age = now - newest.made_at if newest is not None else float("inf")
        if self._making is None and age > (FRESH_EVERY_S if fresh else self._max_age_s) and self._make_room(now, fresh):
            self._making = self._start(self._make)
            self._collect(now)
            newest = self._shelf[-1] if self._shelf else None
        if newest is None or (fresh and self._making is not None):
            return None
        return newest.snapshot.index

    def on_piece(self, snapshot: str, piece: int) -> memoryview | None:
        """Read-only bytes; None when the snapshot is gone or has no such piece."""
        for shelved in self._shelf:
            if shelved.snapshot.index.snapshot == snapshot:
                shelved.used_at = self._now()
                return shelved.snapshot.piece(piece)
        return None

    def _collect(self, now: float) -> None:
        if self._making is None or not self._making.done():
            return
        made, self._making = self._making.result(), None
        if made is None:
            return
        same = [shelved for shelved in self._shelf if shelved.snapshot.index.snapshot == made.index.snapshot]
        for shelved in same:  # the same bytes: those who fetch go on
            self._shelf.remove(shelved)
        self._shelf.append(_Shelved(made, now, now))

    def _make_room(self, now: float, fresh: bool) -> bool:
        """Drop a snapshot nobody fetches from if there is no free place; whether there is one now."""
        if len(self._shelf) < self._keep:
            return True
        idle_s = FRESH_EVERY_S if fresh else self._max_age_s
        for shelved in self._shelf:
            if now - shelved.used_at > idle_s or now - shelved.made_at > HOLD_S:
                self._shelf.remove(shelved)
                return True
        return False


def check_index(index: StateIndex, layout: Layout, *, momentum: bool | None = None) -> None:
    """Compare a donor's index with the layout. `momentum`: whether it has to have it; None: it may. Raises
    BadPayload."""
    if index.layout_digest != layout.digest():
        raise BadPayload("layout", "the donor's state has another layout of tensors")
    cut, given = layout.pieces(), [(p.first, p.count, p.nbytes) for p in index.pieces]
    allowed = [cut + cut] if momentum else [cut] if momentum is False else [cut, cut + cut]
    if given not in allowed:
        raise BadPayload("index", "the donor's pieces are not cut as the layout says")
    if any(len(p.digest) != 32 for p in index.pieces) or not 0 < len(index.snapshot) <= _MAX_ID:
        raise BadPayload("index", "the donor's index is malformed")
    if not 0 <= index.round < 2**53:
        raise BadPayload("index", f"the donor names an impossible round: {index.round}")


def check_piece(data: bytes, piece: Piece, number: int) -> None:
    """Raises BadPayload unless these are the bytes that the index names, and finite values."""
    if len(data) != piece.nbytes:
        raise BadPayload("length", f"piece {number} has {len(data)} bytes instead of {piece.nbytes}")
    if blake3(data).digest() != piece.digest:
        raise BadPayload("digest", f"piece {number} is not what the donor's index says")
    if not np.isfinite(np.frombuffer(data, dtype="<f4")).all():
        raise BadPayload("not_finite", f"piece {number} of the donor's state holds NaN or infinity")
