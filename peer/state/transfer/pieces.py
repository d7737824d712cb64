"""Stores the pieces of the state that a joiner fetches: in memory, and in a folder that survives a kill.

Each piece is a file, named by its number, its donor's round and its digest. It is written under a temporary name and
renamed, and its digest is checked when it is read. There is at most one file per piece, so that the folder is never
larger than the state. Foreign, damaged and outdated files are deleted. Errors of the disk are ignored: without a file,
the piece has to be fetched again only if the process is killed."""

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
    """A verified piece that is part of the state."""

    piece: Piece
    round: int
    """The donor's round when it made the snapshot."""


class PieceStore:
    """Assembles a state from pieces. It is a `peer.state.transfer.download.PieceTarget`.

    `folder`: for the files, used by this run and identity alone; None: in memory only. `momentum`: whether the state
    contains outer_momentum, as in groups. `into`, `momentum_into`: flat fp32 tensors to store outer_params and the
    momentum in; None: in newly allocated ones."""

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
        """Name of the group's state that the pieces belong to (`mark_of`). Empty: none was chosen yet."""
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
        """Bytes of the pieces that are here."""
        return sum(held.piece.nbytes for held in self.held.values())

    @property
    def complete(self) -> bool:
        return len(self.held) == len(self._cut)

    def load(self) -> None:
        """Load the pieces that an earlier process stored, and the name of their state. Blocks, so call it in a thread.

        Never raises because of what is on the disk."""
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
        """Set the name of the state that all further pieces belong to, and store it on disk."""
        if mark != self.mark and self._folder is not None:
            with contextlib.suppress(OSError):
                make_private(self._folder)
                replace_file(self._folder / MARK, mark.encode())
        self.mark = mark

    def store(self, number: int, index: StateIndex, data: bytes) -> None:
        """Check a donor's piece and write it to disk. Called in a thread, before `place`.

        Raises BadPayload when the piece does not match the donor's index."""
        piece = index.pieces[number]
        check_piece(data, piece, number)
        if self._folder is not None:
            with contextlib.suppress(OSError):
                make_private(self._folder)
                replace_file(self._folder / _name(number, piece, index.round), data)

    def put_zeros(self, number: int, piece: Piece, round_: int) -> bool:
        """Add a piece of zeros without fetching it. Return False if its digest shows that it has other values."""
        if piece.digest != _digest_of_zeros(piece.nbytes):
            return False
        self._put(number, piece, round_, bytes(piece.nbytes))
        return True

    def retain(self, wanted: Callable[[int, HeldPiece], bool]) -> int:
        """Drop the pieces for which `wanted(number, piece)` is False, also on disk. Return the bytes dropped."""
        gone = {number: held for number, held in self.held.items() if not wanted(number, held)}
        for number, held in gone.items():
            del self.held[number]
            if self._folder is not None:
                with contextlib.suppress(OSError):
                    (self._folder / _name(number, held.piece, held.round)).unlink(missing_ok=True)
        return sum(held.piece.nbytes for held in gone.values())

    def state(self) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Return (outer_params, outer_momentum), both flat fp32; the momentum may be None. Needs all pieces."""
        assert self.complete, (len(self.held), len(self._cut))
        return self._params, self._momentum

    def adopt_state(self, params: torch.Tensor, round_: int) -> None:
        """Replace all pieces by a whole state, flat fp32, which has no momentum. Blocks, so call it in a thread."""
        assert self._momentum is None
        self._params.copy_(params)
        self.held = {number: HeldPiece(Piece(*cut, b""), round_) for number, cut in enumerate(self._cut)}

    def release(self) -> None:
        """Drop the references to the state, so that its memory can be freed. Nothing may be added afterwards."""
        self.held.clear()
        self._params, self._momentum = zeros(0), None

    def clear(self) -> None:
        """Remove all files on disk. Never raises."""
        if self._root is not None:
            _remove(self._root)

    def place(self, number: int, index: StateIndex, data: bytes) -> None:
        """Copy a stored piece into the state. Called in the event loop, after `store`."""
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
    """Return the digest of `nbytes` zero bytes. Cached, because pieces have few different lengths."""
    return blake3(bytes(nbytes)).digest()


def _name(number: int, piece: Piece, round_: int) -> str:
    return f"{number}-{round_}-{piece.digest.hex()}"


def _remove(entry: Path) -> None:
    """Remove a file or folder of the store. A link itself is removed, not its target. Errors are ignored."""
    with contextlib.suppress(OSError):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def shares(given: Mapping[PeerId, int]) -> str:
    """Return a text with the bytes that each donor sent, for a person."""
    parts = sorted(given.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{peer[-8:]} {amount(nbytes, 'bytes')}" for peer, nbytes in parts)
