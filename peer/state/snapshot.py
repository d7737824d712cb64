"""Snapshots of a donor's outer state, which joiners fetch in pieces.

The bytes are little-endian fp32 in layout order: `outer_params`, followed in groups by `outer_momentum`, both cut into
pieces alike (`Layout.pieces`). A group's snapshot is named by its bytes, so that all members with the same state offer
the same snapshot. A donor copies its state between two outer steps. The copy is stored in an unlinked file
(`peer.state.unnamed`), so that it needs no memory."""

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
"""Most seconds for which a snapshot is retained because joiners still fetch it."""
FRESH_EVERY_S = 1.0
"""Least seconds between two snapshots, however many joiners ask for a fresh one."""
REST = 20.0
"""After a copy, no other is made for this many times the duration of that copy, so that joiners cost at most a
twentieth of a core."""
_MAX_ID = 64
MARK = 32
"""Hex digits of a group state's name."""


class StateSnapshot:
    """A copy of `outer_params` and, if given, `momentum`, which later outer steps do not change.

    Both are flat fp32 with `layout.elements` values. `round_`: of the state. `folder`: where the copy is stored; None:
    in memory. Raises OSError."""

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
        """Description of the snapshot with the digests of its pieces. The first access hashes the whole copy."""
        pieces = tuple(Piece(*cut, blake3(view).digest()) for cut, view in zip(self._cut, self._pieces, strict=True))
        name = mark_of(pieces) if self._named_by_bytes else secrets.token_hex(8)
        return StateIndex(name, self._round, self._layout.digest(), pieces)

    def close(self) -> None:
        """Drop the copy. `piece` returns None from now on."""
        self._pieces.clear()

    def piece(self, number: int) -> memoryview | None:
        """Return the read-only bytes of a piece. None: there is no such piece, or the snapshot is closed."""
        return self._pieces[number] if 0 <= number < len(self._pieces) else None


def mark_of(pieces: Sequence[Piece]) -> str:
    """Return the name of a group's state: the first `MARK` hex digits of the digest over its pieces' digests."""
    return blake3(b"".join(piece.digest for piece in pieces)).hexdigest()[:MARK]


def digest_of_state(outer: OuterState, *, momentum: bool) -> bytes:
    """Return the BLAKE3 digest over the digests of a state's pieces, which an operator's node signs.

    The name that `mark_of` returns is its beginning. Blocks while it hashes the whole state."""
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
    """Make a snapshot of the present state, in any thread. None: an outer step was under way, or began meanwhile.

    `momentum`: whether to include it. Raises OSError when the disk of `folder` is full."""
    begun = outer.begun
    if outer.busy:
        return None
    snapshot = StateSnapshot(outer.params, outer.layout, round_, outer.momentum if momentum else None, folder)
    if outer.begun != begun:
        return None
    assert snapshot.index.pieces  # computes the digests here in the thread; the state may move meanwhile
    return snapshot


def describe_copy_room(folder: Path, elements: int, *, momentum: bool) -> str:
    """Return the space on disk that snapshots for joiners take, and a warning if there is too little, for a person."""
    one = 4 * elements * (2 if momentum else 1)
    free = shutil.disk_usage(folder).free
    summary = f"copies of the state for joiners: {amount(one, 'bytes')} each, at most {KEEP} at once, in {folder}"
    if free >= KEEP * one:
        return summary
    return f"{summary}; only {amount(free, 'bytes')} are free: joiners may have to ask others"


KEEP = 2
"""Most snapshots of a donor at the same time."""


@dataclass(slots=True)
class _CachedSnapshot:
    """A snapshot of the cache, with the times, by the cache's clock, when it was made and last used by a joiner."""

    snapshot: StateSnapshot
    made_at: float
    used_at: float

    def release(self) -> None:
        """Drop the snapshot. Its memory is freed once no piece of it is being sent any more."""
        self.snapshot.close()


class SnapshotCache:
    """Makes and serves the snapshots of a donor, at most `keep` at the same time.

    `make`: copies the present state, or returns None when it cannot now. `now`: a clock in seconds. `start`: runs
    `make` and the freeing of snapshots. A request makes a new snapshot when the newest is older than `max_age_s`; the
    former one is retained for joiners that are still fetching it.

    While joiners are fetching all `keep` snapshots, no snapshot is dropped for up to `HOLD_S`, so that a slow joiner is
    not interrupted. Later joiners are then offered the newest snapshot, even if it is older than `max_age_s`."""

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
        """Return the index of a snapshot to fetch. None: it is being made, so the joiner has to ask again.

        `fresh`: make a new snapshot unless the newest is younger than `FRESH_EVERY_S`. `wanted`: name of the snapshot
        that the joiner is fetching, which is preferred while it exists. Raises PartnerRefused when the copy could not
        be written."""
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
            return None  # the newest may be very old, because snapshots are made on request only
        return newest.snapshot.index

    def on_piece(self, snapshot: str, piece: int) -> memoryview | None:
        """Return the read-only bytes of a piece. None: the snapshot is gone, or has no such piece."""
        for cached in self._cached:
            if cached.snapshot.index.snapshot == snapshot:
                cached.used_at = self._now()
                return cached.snapshot.piece(piece)
        return None

    def _timed(self) -> StateSnapshot | None:
        """Make a copy, in any thread. Afterwards, also on failure, set the time before which no other copy is made."""
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
        if same:  # same name, so same bytes: joiners continue with the new snapshot
            self._discard(same.pop())

    def _make_room(self, now: float, fresh: bool) -> bool:
        """If there are `keep` snapshots, drop one that no joiner uses. Return whether another may be made."""
        if len(self._cached) < self._keep:
            return True
        idle_s = FRESH_EVERY_S if fresh else self._max_age_s
        for cached in self._cached:
            if now - cached.used_at > idle_s or now - cached.made_at > HOLD_S:
                self._discard(cached)
                return True
        return False

    def _discard(self, cached: _CachedSnapshot) -> None:
        """Remove a snapshot. Its space is freed in a call of `start`, because freeing takes as long as copying."""
        self._cached.remove(cached)
        self._start(cached.release)


def check_index(index: StateIndex, layout: Layout, *, momentum: bool | None = None) -> None:
    """Check a donor's index against the layout. Raises BadPayload.

    `momentum`: whether the index must contain outer_momentum; None: either is valid."""
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
    """Check that `data` is piece `number` of an index, and that its values are finite. Raises BadPayload."""
    if len(data) != piece.nbytes:
        raise BadPayload(Code.LENGTH, f"piece {number} has {len(data)} bytes instead of {piece.nbytes}")
    if blake3(data).digest() != piece.digest:
        raise BadPayload(Code.DIGEST, f"piece {number} is not what the donor's index says")
    if not np.isfinite(np.frombuffer(data, dtype="<f4")).all():
        raise BadPayload(Code.NOT_FINITE, f"piece {number} of the donor's state holds NaN or infinity")
