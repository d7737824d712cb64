"""What daemon and trainer share by memory-mapped files: the arena (snapshots, never live parameters) and the counters,
which outlive both processes."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from peer.errors import HomeUnusable
from peer.protocol.layout import Layout
from peer.trainer.seam import Counters

ARENA = "arena.bin"
COUNTERS = "counters.bin"
MAGIC = int.from_bytes(b"peercnt\0", "little")
VERSION = 1
TOKENS, STEPS, TRAINING_NS, WAITING_NS, BASE = 3, 4, 5, 6, 7
"""Indices of little-endian u64: magic, version, fragments, then these; `BASE + f` for fragment f."""


class Arena:
    """Two slots a fragment: `out` is written by the trainer (snapshots), `inn` by the daemon (outer_params). Each is a
    flat fp32 tensor of the whole model in layout order; a fragment's slot is its span."""

    def __init__(self, folder: Path, layout: Layout, *, create: bool) -> None:
        """`create`: make or resize the file and touch every page, so that no later copy pays for page faults or meets a
        full disk. Raises HomeUnusable."""
        self._layout = layout
        path = folder / ARENA
        nbytes = 2 * 4 * layout.elements
        try:
            flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
            descriptor = os.open(path, flags, 0o600)
            try:
                if create:
                    _reserve(descriptor, nbytes)
                mapped = mmap.mmap(descriptor, nbytes)
            finally:
                os.close(descriptor)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise HomeUnusable(
                f"the arena {path} of {nbytes / 2**20:.0f} MiB cannot be made: {reason}",
                "Free some disk space, or choose another folder with --home.",
            ) from error
        pages = np.frombuffer(mapped, np.uint8)[:: mmap.PAGESIZE]
        if create:
            pages |= 0  # a write fault each, without changing what is there
        else:
            pages.max()  # only read: the other side may be writing
        whole = torch.from_numpy(np.frombuffer(mapped, np.float32))
        self.out: torch.Tensor = whole[: layout.elements]
        self.inn: torch.Tensor = whole[layout.elements :]

    def out_slot(self, fragment: int) -> torch.Tensor:
        start, end = self._layout.fragment_span(fragment)
        return self.out[start:end]

    def in_slot(self, fragment: int) -> torch.Tensor:
        start, end = self._layout.fragment_span(fragment)
        return self.inn[start:end]


def _reserve(descriptor: int, nbytes: int) -> None:
    """Give the file its size with disk blocks behind it: a full disk is an error here, not a SIGBUS later."""
    os.ftruncate(descriptor, nbytes)
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(descriptor, 0, nbytes)


class CounterFile:
    """The trainer's side: every store is one aligned 8-byte write, so a kill at any moment leaves whole numbers."""

    def __init__(self, folder: Path, fragments: int) -> None:
        """Makes the file, all zero, if there is none. Raises HomeUnusable for one that is not ours or damaged."""
        path = folder / COUNTERS
        if not path.exists():
            _create(path, fragments)
        _checked(path, fragments)
        with path.open("r+b") as file:
            self._words: NDArray[np.uint64] = np.frombuffer(mmap.mmap(file.fileno(), 0), "<u8")
        self._fragments = fragments

    @property
    def tokens(self) -> int:
        return int(self._words[TOKENS])

    def base(self, fragment: int) -> int:
        return int(self._words[BASE + fragment])

    def stepped(self, tokens: int, nanoseconds: int) -> None:
        self._words[TRAINING_NS] += np.uint64(nanoseconds)
        self._words[STEPS] += np.uint64(1)
        self._words[TOKENS] += np.uint64(tokens)

    def waited(self, nanoseconds: int) -> None:
        self._words[WAITING_NS] += np.uint64(nanoseconds)

    def rebase(self, fragment: int, tokens: int) -> None:
        """Everything up to `tokens` of this fragment's work is applied or dropped. Never goes back."""
        assert self.base(fragment) <= tokens <= self.tokens, (self.base(fragment), tokens, self.tokens)
        self._words[BASE + fragment] = tokens


def read_counters(folder: Path, fragments: int) -> Counters:
    """The counters as they are now, whoever runs or does not; zeros when no trainer ever ran there.

    Raises HomeUnusable, naming the file, when it is damaged."""
    path = folder / COUNTERS
    if not path.exists():
        return Counters(0, 0, (0,) * fragments, 0.0, 0.0)
    words = _checked(path, fragments)
    base = tuple(int(word) for word in words[BASE:])
    training, waiting = int(words[TRAINING_NS]) / 1e9, int(words[WAITING_NS]) / 1e9
    return Counters(int(words[TOKENS]), int(words[STEPS]), base, training, waiting)


def _create(path: Path, fragments: int) -> None:
    words = np.zeros(BASE + fragments, "<u8")
    words[:3] = (MAGIC, VERSION, fragments)
    draft = path.with_name(f".{path.name}.draft")
    draft.write_bytes(words.tobytes())
    draft.replace(path)  # whole or not at all


def _checked(path: Path, fragments: int) -> NDArray[np.uint64]:
    """The file's words, copied."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise HomeUnusable(f"{path} cannot be read: {error.strerror}", "Make it readable for this user.") from error
    words: NDArray[np.uint64] = np.frombuffer(raw[: len(raw) // 8 * 8], "<u8")
    if len(raw) != 8 * (BASE + fragments) or tuple(words[:3]) != (MAGIC, VERSION, fragments):
        raise HomeUnusable(
            f"{path} is damaged: {len(raw)} bytes that are not the counters of {fragments} fragment(s)",
            "Move it away; the account of work done so far on this machine is then lost, nothing else.",
        )
    return words
