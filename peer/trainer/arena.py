"""The memory-mapped files that daemon and trainer share: the arena and the counters.

The arena holds snapshots and `outer_params`, and never live parameters. The counter file outlives both processes."""

from __future__ import annotations

import mmap
import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from peer.errors import HomeUnusable, file_advice, for_shell
from peer.observe.formatting import amount
from peer.ports.trainer import Counters
from peer.protocol.model.layout import Layout
from peer.run.home import write_whole

ARENA = "arena.bin"
COUNTERS = "counters.bin"
PLACE, ATTACHED_PLACE = "trainer.json", "loop.json"
"""Files of a checkpoint that show which kind of loop wrote it: the built-in loop, or a user's own."""
MAGIC = int.from_bytes(b"peercnt\0", "little")
VERSION = 1
TOKENS, STEPS, TRAINING_NS, WAITING_NS, BASE = 3, 4, 5, 6, 7
"""Layout of the counter file, as indices of little-endian u64. Words 0 to 2 are magic, version and number of fragments.
`BASE + f` is the base of fragment f."""


class Arena:
    """Two slots per fragment: the trainer writes snapshots to `out`, the daemon writes `outer_params` to `inn`.

    `out` and `inn` are flat fp32 tensors of the whole model in layout order, and a fragment's slot is its span. The
    daemon may keep its `outer_params` in `inn`, so that handing them over costs no copy."""

    def __init__(self, folder: Path, layout: Layout, *, create: bool) -> None:
        """Map the file in `folder`. Raises HomeUnusable.

        `create`: make or resize the file and touch every page, so that later copies cause no page faults and cannot
        fail because of a full disk."""
        self._layout = layout
        whole = map_values(folder / ARENA, 2 * layout.elements, create=create)
        self.out: torch.Tensor = whole[: layout.elements]
        self.inn: torch.Tensor = whole[layout.elements :]

    def out_slot(self, fragment: int) -> torch.Tensor:
        start, end = self._layout.fragment_span(fragment)
        return self.out[start:end]

    def in_slot(self, fragment: int) -> torch.Tensor:
        start, end = self._layout.fragment_span(fragment)
        return self.inn[start:end]


def map_values(path: Path, elements: int, *, create: bool) -> torch.Tensor:
    """Map a file of `elements` fp32 values, read and write. `create`: see `Arena`. Raises HomeUnusable."""
    nbytes = 4 * elements
    try:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | (os.O_CREAT if create else 0)
        descriptor = os.open(path, flags, 0o600)
        try:
            if create:
                _reserve(descriptor, path, nbytes)
            mapped = mmap.mmap(descriptor, nbytes)
        finally:
            os.close(descriptor)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise HomeUnusable(
            f"{path} of {amount(nbytes, 'bytes')} cannot be made: {reason}",
            file_advice(error, path),
        ) from error
    pages = np.frombuffer(mapped, np.uint8)[:: mmap.PAGESIZE]
    if create:
        pages |= 0  # faults each page in for writing, without changing its content
    else:
        pages.max()  # read only, as the other side may be writing
    return torch.from_numpy(np.frombuffer(mapped, np.float32))


def shift_file(folder: Path, fragment: int) -> Path:
    """Return the path of the file in which the daemon passes a difference to be added to a fragment's params.

    It holds little-endian fp32 and exists only during the call."""
    return folder / f"shift-{fragment}.bin"


def _reserve(descriptor: int, path: Path, nbytes: int) -> None:
    """Allocate the file's disk blocks, so that a full disk is an error here and no SIGBUS later.

    Removes the file on failure. Raises OSError."""
    try:
        os.ftruncate(descriptor, nbytes)
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, nbytes)
    except OSError:
        path.unlink(missing_ok=True)
        raise


class CounterFile:
    """The trainer's mapping of the counters, which it alone writes.

    Every store is one aligned 8-byte write, so that a killed process leaves consistent numbers."""

    def __init__(self, folder: Path, fragments: int) -> None:
        """Open the file, or make it with all counters zero. Raises HomeUnusable for a foreign or damaged one."""
        path = folder / COUNTERS
        if not path.exists():
            write_whole(path, _fresh(fragments).tobytes(), synced=True)
        words = _checked(path, fragments)
        if (
            words[BASE:] > words[TOKENS]
        ).any():  # checked only here, because a reader beside a running trainer may see such values for a moment
            raise _damaged(path, fragments)
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
        """Move a fragment's base forward to `tokens`: the work up to that count is applied or dropped."""
        assert self.base(fragment) <= tokens <= self.tokens, (self.base(fragment), tokens, self.tokens)
        self._words[BASE + fragment] = tokens


def recover_counters(folder: Path, fragments: int, covered: Mapping[int, int]) -> str:
    """Advance counters that a power loss has set back, up to what the journal covers. No trainer may run meanwhile.

    The kernel keeps the stores of a killed process. After a power loss, however, the file may be missing or empty, hold
    zeros, or hold older numbers than the journal. Work beyond the journal is then lost together with its params.

    `covered`: fragment -> token count up to which the work is applied or dropped. Returns a description for the log;
    empty: nothing had to be done. Raises HomeUnusable for damage of another kind."""
    path, tokens = folder / COUNTERS, max(covered.values(), default=0)
    raw = _read(path, fragments) if path.exists() else b""
    if len(raw) > 8 * (BASE + fragments) or any(raw):
        words = _checked(path, fragments)
        found = f"is behind the journal, {int(words[TOKENS]):,} of {tokens:,} tokens"
        if words[TOKENS] >= tokens:
            return ""
    else:
        words, found = _fresh(fragments), f"holds {'zeros' if raw else 'nothing'}"
        if not tokens and not path.exists():
            return ""
    for fragment in range(fragments):
        words[BASE + fragment] = max(int(words[BASE + fragment]), covered.get(fragment, 0))
    words[TOKENS] = tokens
    write_whole(path, words.tobytes(), synced=True)
    return f"{path} {found}, as after a power loss: the count goes on at {tokens:,} tokens, by the journal"


def read_counters(folder: Path, fragments: int) -> Counters:
    """Return the current counters. They are zeros if no trainer has run in this folder. A trainer may run meanwhile.

    Raises HomeUnusable, which names the file, when it is damaged."""
    path = folder / COUNTERS
    if not path.exists():
        return Counters(0, 0, (0,) * fragments, 0.0, 0.0)
    return counters_of(_checked(path, fragments))


def counters_of(words: NDArray[np.uint64]) -> Counters:
    """Convert the words of a counter file. Nanoseconds become seconds."""
    base = tuple(int(word) for word in words[BASE:])
    training, waiting = int(words[TRAINING_NS]) / 1e9, int(words[WAITING_NS]) / 1e9
    return Counters(int(words[TOKENS]), int(words[STEPS]), base, training, waiting)


def _fresh(fragments: int) -> NDArray[np.uint64]:
    words: NDArray[np.uint64] = np.zeros(BASE + fragments, "<u8")
    words[:3] = (MAGIC, VERSION, fragments)
    return words


def _checked(path: Path, fragments: int) -> NDArray[np.uint64]:
    """Return a copy of the counter file's words. Raises HomeUnusable when it is damaged or cannot be read."""
    words = parse_words(_read(path, fragments), fragments)
    if words is None:
        raise _damaged(path, fragments)
    return words.copy()


def _read(path: Path, fragments: int) -> bytes:
    """Read at most one byte more than a valid file has, so that a longer one is noticed. Raises HomeUnusable."""
    try:
        with path.open("rb") as file:
            return file.read(8 * (BASE + fragments) + 1)
    except OSError as error:
        raise HomeUnusable(f"{path} cannot be read: {error.strerror}", file_advice(error, path)) from error


def _damaged(path: Path, fragments: int) -> HomeUnusable:
    return HomeUnusable(
        f"{path} is damaged: it does not hold counters of {fragments} {'fragment' if fragments == 1 else 'fragments'}",
        f"Move it away: mv {for_shell(path)} {for_shell(path)}.damaged   The next start counts on by the journal.",
    )


def parse_words(raw: bytes, fragments: int) -> NDArray[np.uint64] | None:
    """Return the words of a counter file, as u64. None: `raw` is not a counter file for this number of fragments."""
    if len(raw) != 8 * (BASE + fragments):
        return None
    words: NDArray[np.uint64] = np.frombuffer(raw, "<u8")
    return words if words[:3].tolist() == [MAGIC, VERSION, fragments] and words[TOKENS] < 2**63 else None
