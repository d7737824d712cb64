"""Immutable copies of a donor's outer state, cut in pieces.

The bytes are fp32, little endian, in layout order: `outer_params`, and in groups `outer_momentum` after it, cut alike
(`Layout.pieces`). A group's snapshot is named by its bytes, so that all members of one state offer the same snapshot. A
donor copies between two outer steps, and copies again on a `fresh` request when the state has moved on. The copy
lies in a file without a name (`peer.state.unnamed`), so that a donor needs no memory for it."""

from __future__ import annotations

import math
import secrets
import shutil
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import torch
from blake3 import blake3

from peer.aio.threads import Start, at_once
from peer.codes import Code
from peer.errors import BadPayload, PartnerRefused
from peer.observe.formatting import amount
from peer.outer.state import OuterState
from peer.protocol.messages import Piece, StateIndex
from peer.protocol.model.layout import Layout
from peer.state.unnamed import unnamed

HOLD_S = 900.0
"""Seconds that a snapshot is held for joiners that still fetch it, at most."""
FRESH_EVERY_S = 1.0
"""Seconds between two fresh snapshots, at least, whoever asks."""
REST = 20.0
"""After a copy none is made for so many times as long as it took: joiners cost a twentieth of a core at most."""
_MAX_ID = 64
MARK = 32
"""Characters of a state's name."""


class StateSnapshot:
    """Copy of `outer_params` and, in groups, `outer_momentum` that later outer steps do not move.

    Each is flat fp32, `layout.elements` long. `folder`: where the copy lies; None: in memory. Raises OSError."""

    def __init__(
        self,
        outer_params: torch.Tensor,
        layout: Layout,
        round_: int,
        momentum: torch.Tensor | None = None,
        folder: Path | None = None,
    ) -> None:
        given = (outer_params,) if momentum is None else (outer_params, momentum)
        self._layout = layout
        self._round = round_
        self._named_by_bytes = momentum is not None
        self._cut = layout.pieces() * len(given)
        whole, start = unnamed(folder, 4 * layout.elements * len(given)), 0
        for values in given:
            _copy(values, whole[start : start + 4 * layout.elements], layout)
            start += 4 * layout.elements
        edges = [0, *accumulate(nbytes for _, _, nbytes in self._cut)]
        self._pieces = [whole[start:end].toreadonly() for start, end in pairwise(edges)]

    @cached_property
    def index(self) -> StateIndex:
        """The description of the copy. It is hashed when this is first asked for."""
        pieces = tuple(Piece(*cut, blake3(view).digest()) for cut, view in zip(self._cut, self._pieces, strict=True))
        name = mark_of(pieces) if self._named_by_bytes else secrets.token_hex(8)
        return StateIndex(name, self._round, self._layout.digest(), pieces)

    def close(self) -> None:
        """Give no piece any more."""
        self._pieces.clear()

    def piece(self, number: int) -> memoryview | None:
        """Return the read-only bytes of a piece; None when there is no such piece."""
        return self._pieces[number] if 0 <= number < len(self._pieces) else None


def mark_of(pieces: Sequence[Piece]) -> str:
    """Return the name of a state, derived from its bytes, in hex."""
    return blake3(b"".join(piece.digest for piece in pieces)).hexdigest()[:MARK]


def digest_of_state(outer: OuterState, *, momentum: bool) -> bytes:
    """Return the BLAKE3 digest over the digests of a state's pieces, which an operator's node signs. `mark_of` is its
    beginning. It takes as long as hashing all of the state."""
    whole = blake3()
    for values in (outer.params, outer.momentum) if momentum else (outer.params,):
        view, start = values.numpy().data.cast("B"), 0
        for _, _, nbytes in outer.layout.pieces():
            whole.update(blake3(view[start : start + nbytes]).digest())
            start += nbytes
    return whole.digest()


def _copy(values: torch.Tensor, into: memoryview, layout: Layout) -> None:
    assert values.dtype == torch.float32, values.dtype
    assert values.shape == (layout.elements,), values.shape
    np.copyto(np.frombuffer(into, "<f4"), values.detach().cpu().numpy())


def copy_of(outer: OuterState, round_: int, *, momentum: bool, folder: Path | None = None) -> StateSnapshot | None:
    """Make a snapshot between two outer steps, in any thread; None when a step was under way or began meanwhile.

    Raises OSError when the disk of `folder` has no room."""
    begun = outer.begun
    if outer.busy:
        return None
    snapshot = StateSnapshot(outer.params, outer.layout, round_, outer.momentum if momentum else None, folder)
    if outer.begun != begun:
        return None
    assert snapshot.index.pieces  # hashed in this thread, when the state may move again
    return snapshot


def describe_copy_room(folder: Path, elements: int, *, momentum: bool) -> str:
    """Return what the copies for joiners take on the disk, for a person."""
    one = 4 * elements * (2 if momentum else 1)
    free = shutil.disk_usage(folder).free
    summary = f"copies of the state for joiners: {amount(one, 'bytes')} each, at most {KEEP} at once, in {folder}"
    if free >= KEEP * one:
        return summary
    return f"{summary}; only {amount(free, 'bytes')} are free: joiners may have to ask others"


KEEP = 2
"""Snapshots that a donor keeps at most."""


@dataclass(slots=True)
class _CachedSnapshot:
    snapshot: StateSnapshot
    made_at: float
    used_at: float

    def release(self) -> None:
        """Forget the copy. A piece that is being sent keeps it until then."""
        self.snapshot.close()


class SnapshotCache:
    """Snapshots that a donor serves: at most `keep`, each the size of the state in fp32.

    `make` copies the current state, or returns None when it cannot now. `now` is in seconds. A snapshot older than
    `max_age_s` is followed by a fresh one, and the former stays for joiners under way.

    While joiners use all places, the newest snapshot is offered although it is older. A slow joiner is thus not starved
    by later ones, for up to `HOLD_S`."""

    def __init__(
        self,
        make: Callable[[], StateSnapshot | None],
        now: Callable[[], float],
        start: Start = at_once,
        max_age_s: float = 30.0,
        keep: int = KEEP,
    ) -> None:
        assert keep >= 1, keep
        self._make = make
        self._now = now
        self._start = start
        self._max_age_s = max_age_s
        self._keep = keep
        self._cached: list[_CachedSnapshot] = []
        self._making: Future[StateSnapshot | None] | None = None
        self._rests_until = -math.inf

    def on_state(self, fresh: bool = False, wanted: str = "") -> StateIndex | None:
        """Return the index of a snapshot to fetch; None while it is being made.

        `fresh` asks for another snapshot if the state has moved on, and `wanted` for the one of that name while it is
        kept. Raises PartnerRefused when there was no room for it."""
        now = self._now()
        self._collect(now)
        for cached in self._cached:
            if cached.snapshot.index.snapshot == wanted:
                cached.used_at = now
                return cached.snapshot.index
        newest = self._cached[-1] if self._cached else None
        age = now - newest.made_at if newest is not None else float("inf")
        due = age > (FRESH_EVERY_S if fresh else self._max_age_s) and now >= self._rests_until
        if self._making is None and due and self._make_room(now, fresh):
            self._making = self._start(self._timed)
            self._collect(now)
            newest = self._cached[-1] if self._cached else None
        if newest is None or (self._making is not None and (fresh or age > self._max_age_s)):
            return None  # the last one may be of long ago: nobody has asked since
        return newest.snapshot.index

    def on_piece(self, snapshot: str, piece: int) -> memoryview | None:
        """Return read-only bytes; None when the snapshot is gone or has no such piece."""
        for cached in self._cached:
            if cached.snapshot.index.snapshot == snapshot:
                cached.used_at = self._now()
                return cached.snapshot.piece(piece)
        return None

    def _timed(self) -> StateSnapshot | None:
        """Make a copy, in any thread, and rest after it, also if it came to nothing."""
        began = self._now()
        try:
            return self._make()
        finally:
            ended = self._now()
            self._rests_until = ended + REST * max(0.0, ended - began)

    def _collect(self, now: float) -> None:
        if self._making is None or not self._making.done():
            return
        making, self._making = self._making, None
        try:
            made = making.result()
        except OSError as error:
            reason = f"this peer cannot write a copy of its state: {error.strerror}"
            raise PartnerRefused(Code.NO_STATE, reason) from error
        if made is None:
            return
        same = [cached for cached in self._cached if cached.snapshot.index.snapshot == made.index.snapshot]
        self._cached.append(_CachedSnapshot(made, now, now))
        if same:  # the same bytes: joiners continue with the new one
            self._discard(same.pop())

    def _make_room(self, now: float, fresh: bool) -> bool:
        """Drop a snapshot that no joiner uses if there is no free place; return whether there is one now."""
        if len(self._cached) < self._keep:
            return True
        idle_s = FRESH_EVERY_S if fresh else self._max_age_s
        for cached in self._cached:
            if now - cached.used_at > idle_s or now - cached.made_at > HOLD_S:
                self._discard(cached)
                return True
        return False

    def _discard(self, cached: _CachedSnapshot) -> None:
        """Give a snapshot's place on the disk back in the thread that copies: it takes as long as a copy."""
        self._cached.remove(cached)
        self._start(cached.release)


def check_index(index: StateIndex, layout: Layout, *, momentum: bool | None = None) -> None:
    """Compare a donor's index with the layout. Raises BadPayload.

    `momentum` tells whether the index must contain it; None: it may."""
    if index.layout_digest != layout.digest():
        raise BadPayload(Code.LAYOUT, "the donor's state has another layout of tensors")
    cut, given = layout.pieces(), [(p.first, p.count, p.nbytes) for p in index.pieces]
    allowed = [cut + cut] if momentum else [cut] if momentum is False else [cut, cut + cut]
    if given not in allowed:
        raise BadPayload(Code.INDEX, "the donor's pieces are not cut as the layout says")
    if any(len(p.digest) != 32 for p in index.pieces) or not 0 < len(index.snapshot) <= _MAX_ID:
        raise BadPayload(Code.INDEX, "the donor's index is malformed")
    if not 0 <= index.round < 2**53:
        raise BadPayload(Code.INDEX, f"the donor names an impossible round: {index.round}")


def check_piece(data: bytes, piece: Piece, number: int) -> None:
    """Check that these are the bytes which the index names, and finite values. Raises BadPayload."""
    if len(data) != piece.nbytes:
        raise BadPayload(Code.LENGTH, f"piece {number} has {len(data)} bytes instead of {piece.nbytes}")
    if blake3(data).digest() != piece.digest:
        raise BadPayload(Code.DIGEST, f"piece {number} is not what the donor's index says")
    if not np.isfinite(np.frombuffer(data, dtype="<f4")).all():
        raise BadPayload(Code.NOT_FINITE, f"piece {number} of the donor's state holds NaN or infinity")
