"""The file of an artifact that is being fetched.

It has the artifact's length, followed by a table with the digest of each piece that has been stored. After a kill, the
next process continues with the pieces whose digest in the table is right. The table protects only against damage on the
disk: the artifact's own digest is checked over all bytes before the file gets its final name."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3

from peer.codes import Code
from peer.errors import BadPayload, HomeUnusable, file_advice
from peer.protocol.messages import DIGEST_BYTES, PIECE_BYTES, PeerId, piece_sizes
from peer.run.files.artifact import ArtifactRef
from peer.whole_files import sync, write_all

READ_BYTES = 2**20
NOTHING = bytes(DIGEST_BYTES)


def draft_bytes(size: int) -> int:
    """Return the bytes of the draft of an artifact of `size` bytes, with the table of digests."""
    return size - DIGEST_BYTES * (-size // PIECE_BYTES)


@dataclass(frozen=True, slots=True)
class ArtifactOffer:
    """A donor of an artifact. It takes the place of a donor's index in `Download`."""

    donor: PeerId
    ref: ArtifactRef


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a piece came from, to find the liar when the artifact turns out wrong."""

    donor: PeerId | None
    """The donor. None: an earlier process fetched the piece."""
    digest: bytes
    """BLAKE3 digest of the piece's bytes."""


class ArtifactDraft:
    """The draft of one artifact, as a `peer.state.transfer.download.PieceTarget`.

    `fd`: the open and locked file, which the draft closes. `close` may be called while a thread writes a piece."""

    def __init__(self, fd: int, path: Path, ref: ArtifactRef) -> None:
        self._fd = fd
        self._path = path
        self.ref = ref
        self.sizes = piece_sizes(ref.size)
        self.held: set[int] = set()
        self._origins: dict[int, Origin] = {}
        self._using = threading.Lock()
        self._closed = False

    @property
    def complete(self) -> bool:
        return len(self.held) == len(self.sizes)

    @property
    def done(self) -> int:
        """Bytes of the pieces that are stored."""
        return sum(self.sizes[number] for number in self.held)

    @property
    def origins(self) -> dict[int, Origin]:
        """Piece number -> its origin, for all pieces that are stored."""
        return dict(self._origins)

    def load(self) -> None:
        """Find the pieces that an earlier process stored, and verify their digests. Blocks, so call it in a thread."""
        table = os.pread(self._fd, DIGEST_BYTES * len(self.sizes), self.ref.size)
        for number, nbytes in enumerate(self.sizes):
            digest = table[DIGEST_BYTES * number : DIGEST_BYTES * (number + 1)]
            if len(digest) < DIGEST_BYTES or digest == NOTHING:
                continue
            if blake3(os.pread(self._fd, nbytes, PIECE_BYTES * number)).digest() == digest:
                self._origins[number] = Origin(None, digest)
                self.held.add(number)

    def store(self, number: int, index: ArtifactOffer, data: bytes) -> None:
        """Write a donor's piece to the file. Called in a thread, before `place`. Does nothing if the piece is stored.

        Raises BadPayload for a piece of another length, and HomeUnusable when it cannot be written."""
        if len(data) != self.sizes[number]:
            raise BadPayload(Code.LENGTH, f"piece {number} has {len(data)} bytes instead of {self.sizes[number]}")
        digest = blake3(data).digest()
        with self._using:
            if number in self._origins or self._closed:
                return
            try:
                write_all(self._fd, data, PIECE_BYTES * number)
                write_all(self._fd, digest, self.ref.size + DIGEST_BYTES * number)
            except OSError as error:
                raise _unwritable(self._path, error) from error
            self._origins[number] = Origin(index.donor, digest)

    def place(self, number: int, index: ArtifactOffer, data: bytes) -> None:
        """Add a stored piece to `held`. Called in the event loop, after `store`."""
        self.held.add(number)

    def clear(self) -> None:
        """Discard all pieces. Raises HomeUnusable."""
        with self._using:
            try:
                write_all(self._fd, NOTHING * len(self.sizes), self.ref.size)
            except OSError as error:
                raise _unwritable(self._path, error) from error
            self._origins.clear()
            self.held.clear()

    def finish(self, final: Path) -> bool:
        """Check the artifact's digest and rename the file to `final` if it is right. Return whether it is.

        Blocks, so call it in a thread. Raises HomeUnusable."""
        assert self.complete
        with self._using:
            if self._closed:
                return False
            try:
                if self._digest() != self.ref.digest:
                    return False
                os.fsync(self._fd)
                os.ftruncate(self._fd, self.ref.size)
                self._path.rename(final)
                sync(final.parent)
            except OSError as error:
                raise _unwritable(final, error) from error
        return True

    def close(self) -> None:
        """Close and unlock the file. Its content stays for the next process."""
        with self._using:
            if not self._closed:
                self._closed = True
                os.close(self._fd)

    def _digest(self) -> str:
        hasher = blake3()
        for start in range(0, self.ref.size, READ_BYTES):
            hasher.update(os.pread(self._fd, min(READ_BYTES, self.ref.size - start), start))
        return hasher.hexdigest()


def _unwritable(path: Path, error: OSError) -> HomeUnusable:
    return HomeUnusable(f"cannot write {path}: {error.strerror}", file_advice(error, path))
