"""Pieces of a state that a joiner holds: where the state is to lie, and in a folder that survives a kill.

A file is one piece, named by its number, its donor's round and its digest. It is written under another name and
renamed, and its digest is checked on reading. There is at most one file per piece, so the folder never exceeds the
state. Foreign, damaged and outdated files are deleted. A full disk costs only what a kill would then lose."""

from __future__ import annotations

import contextlib
import re
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from blake3 import blake3

from peer.errors import BadPayload
from peer.observe.formatting import amount
from peer.outer.pages import zeros
from peer.protocol.messages import PeerId, Piece, StateIndex
from peer.protocol.model.layout import Layout
from peer.state.files import read_small
from peer.state.snapshot import check_piece
from peer.user_folders import make_private
from peer.whole_files import replace_file

MARK = "state"
MAX_MARK = 64
_NAME = re.compile(r"(0|[1-9][0-9]{0,6})-(0|[1-9][0-9]{0,15})-([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class HeldPiece:
    """Verified piece that is here."""

    piece: Piece
    round: int
    """Round that its donor worked in."""


class PieceStore:
    """Store of the pieces of one state.

    `folder` belongs to this run and identity alone; None: memory only. `momentum` tells whether the state contains it,
    as a group's does. `into`, `momentum_into`: where outer_params and the momentum are to lie, flat fp32; None: in
    memory of their own."""

    def __init__(
        self,
        layout: Layout,
        folder: Path | None,
        *,
        momentum: bool,
        into: torch.Tensor | None = None,
        momentum_into: torch.Tensor | None = None,
    ) -> None:
        cut = layout.pieces()
        self._cut = cut + cut if momentum else cut
        self._params = zeros(layout.elements) if into is None else into
        self._momentum = (zeros(layout.elements) if momentum_into is None else momentum_into) if momentum else None
        self._starts = [0]
        for _, _, nbytes in self._cut:
            self._starts.append(self._starts[-1] + nbytes)
        self.mark = ""
        """Name of the group state that the pieces are of (`mark_of`); empty: none yet."""
        self.held: dict[int, HeldPiece] = {}
        self._root = folder
        self._folder = folder / f"{layout.digest().hex()[:16]}-{len(self._cut)}" if folder is not None else None

    @property
    def sizes(self) -> list[int]:
        """Bytes of each piece."""
        return [nbytes for _, _, nbytes in self._cut]

    @property
    def nbytes(self) -> int:
        """Bytes of the complete state."""
        return self._starts[-1]

    @property
    def done(self) -> int:
        """Bytes that are here."""
        return sum(held.piece.nbytes for held in self.held.values())

    @property
    def complete(self) -> bool:
        return len(self.held) == len(self._cut)

    def load(self) -> None:
        """Take the pieces that an earlier process left, and the name of their state. Slow, so it runs in a thread.

        Files on disk never make it raise."""
        if self._root is None or self._folder is None:
            return
        with contextlib.suppress(OSError):
            for entry in self._root.iterdir():
                if entry != self._folder:
                    _remove(entry)
            self.mark = read_small(self._folder / MARK, MAX_MARK).decode(errors="replace")
        with contextlib.suppress(OSError):
            for entry in self._folder.iterdir():
                if entry.name != MARK and not self._load(entry):
                    entry.unlink()

    def _load(self, entry: Path) -> bool:
        match = _NAME.fullmatch(entry.name)
        if match is None or int(match[1]) >= len(self._cut) or int(match[1]) in self.held:
            return False
        number, digest = int(match[1]), bytes.fromhex(match[3])
        piece = Piece(*self._cut[number], digest)
        try:
            data = read_small(entry, piece.nbytes)
            check_piece(data, piece, number)
        except (OSError, BadPayload):
            return False
        self._put(number, piece, int(match[2]), data)
        return True

    def begin_state(self, mark: str) -> None:
        """Set the name of the state that all pieces from here on are of."""
        if mark != self.mark and self._folder is not None:
            with contextlib.suppress(OSError):
                make_private(self._folder)
                replace_file(self._folder / MARK, mark.encode())
        self.mark = mark

    def store(self, number: int, index: StateIndex, data: bytes) -> None:
        """Check a donor's piece and write it to disk, in a thread. `place` follows.

        Raises BadPayload when the piece is not the one in the donor's index."""
        piece = index.pieces[number]
        check_piece(data, piece, number)
        if self._folder is not None:
            with contextlib.suppress(OSError):
                make_private(self._folder)
                replace_file(self._folder / _name(number, piece, index.round), data)

    def put_zeros(self, number: int, piece: Piece, round_: int) -> bool:
        """Take a piece of zeros, recognised by its digest, without fetching it; return whether it is one."""
        if piece.digest != _digest_of_zeros(piece.nbytes):
            return False
        self._put(number, piece, round_, bytes(piece.nbytes))
        return True

    def retain(self, wanted: Callable[[int, HeldPiece], bool]) -> int:
        """Drop the pieces that are not wanted, here and on disk; return their bytes."""
        gone = {number: held for number, held in self.held.items() if not wanted(number, held)}
        for number, held in gone.items():
            del self.held[number]
            if self._folder is not None:
                with contextlib.suppress(OSError):
                    (self._folder / _name(number, held.piece, held.round)).unlink(missing_ok=True)
        return sum(held.piece.nbytes for held in gone.values())

    def state(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return (outer_params, outer_momentum or None), each flat fp32. All pieces have to be here."""
        assert self.complete, (len(self.held), len(self._cut))
        return self._params, self._momentum

    def adopt_state(self, params: torch.Tensor, round_: int) -> None:
        """Hold this whole state, flat fp32, in the place of all pieces; in a thread. It comes without momentum."""
        assert self._momentum is None
        self._params.copy_(params)
        self.held = {number: HeldPiece(Piece(*cut, b""), round_) for number, cut in enumerate(self._cut)}

    def release(self) -> None:
        """Forget the state, whose space goes back with the last reference. No piece may come any more."""
        self.held.clear()
        self._params, self._momentum = zeros(0), None

    def clear(self) -> None:
        """Remove everything on disk. Never raises."""
        if self._root is not None:
            _remove(self._root)

    def place(self, number: int, index: StateIndex, data: bytes) -> None:
        """Make a stored piece part of the state."""
        self._put(number, index.pieces[number], index.round, data)

    def _put(self, number: int, piece: Piece, round_: int, data: bytes) -> None:
        start, values, elements = self._starts[number] // 4, self._params, self._params.numel()
        if start >= elements:  # the cut of the momentum follows that of the params
            assert self._momentum is not None
            start, values = start - elements, self._momentum
        values[start : start + piece.nbytes // 4].numpy()[:] = np.frombuffer(data, "<f4")
        self.held[number] = HeldPiece(piece, round_)


@lru_cache(64)
def _digest_of_zeros(nbytes: int) -> bytes:
    """Return the digest of so many zeros. It is cached, as pieces come in few lengths."""
    return blake3(bytes(nbytes)).digest()


def _name(number: int, piece: Piece, round_: int) -> str:
    return f"{number}-{round_}-{piece.digest.hex()}"


def _remove(entry: Path) -> None:
    """Remove a file or folder of ours. A link is removed, not followed."""
    with contextlib.suppress(OSError):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def shares(given: Mapping[PeerId, int]) -> str:
    """Return the donors' shares, for a person."""
    parts = sorted(given.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{peer[-8:]} {amount(nbytes, 'bytes')}" for peer, nbytes in parts)
