"""Builds a folder of token shards with an index from texts. A killed build resumes where its last shard was closed."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from blake3 import blake3

from peer.data import build_progress
from peer.data.build_progress import BuildProgress
from peer.data.documents import DocumentReader, Place, TextDocument
from peer.data.encoding import TextEncoder
from peer.data.pipeline import EncodedPiece, encoded
from peer.data.shard_writer import ShardWriter, restore_files
from peer.data.sources import Sources, refused
from peer.errors import file_advice
from peer.run.files.token_index import ShardTable, TokenIndex, format_index, parse_index

HOLDOUT_ONE_IN = 100
DIVISORS = (100, 50, 20, 10, 5, 3, 2)
"""Possible shares of the hold-out: one in this many documents. A text with few documents needs a larger share."""

ProgressCallback = Callable[[int, int], None]
"""Callback with (bytes of the sources that were read, total bytes of the sources)."""


@dataclass(frozen=True, slots=True)
class Built:
    """Result of a complete build.

    `holdout_one_in`: one in this many documents is in the hold-out; `reason`: why this share, for a person. `empty`:
    number of documents without text, which were left out. `resumed`: whether an earlier build was continued."""

    index: TokenIndex
    index_digest: str
    index_nbytes: int
    holdout_one_in: int
    reason: str
    empty: int
    resumed: bool


class _PartEmpty(Exception):
    """One of the parts, training data or hold-out, got no document.

    `fitting_share`: the first of `DIVISORS` with which both parts have documents; None: there is none."""

    def __init__(self, documents: int, part: str, fitting_share: int | None) -> None:
        super().__init__(part)
        self.documents = documents
        self.part = part
        self.fitting_share = fitting_share


def build(
    sources: Sources, encoder: TextEncoder, out: Path, holdout_one_in: int | None, on_progress: ProgressCallback
) -> Built:
    """Build the shards of all sources in the folder `out`. Raises DataError.

    `holdout_one_in`: one in this many documents goes to the hold-out. None: 1 in 100, or a larger share of few
    documents."""
    try:
        with build_progress.locked_folder(out):
            return _build(sources, encoder, out, holdout_one_in, on_progress)
    except OSError as error:
        raise refused(
            f"cannot write below {out}: {error.strerror}",
            f"{file_advice(error, out / 'index', 'choose another --out')} The same command then continues the build.",
        ) from error


def _build(
    sources: Sources, encoder: TextEncoder, out: Path, holdout_one_in: int | None, on_progress: ProgressCallback
) -> Built:
    identity = f"{sources.fingerprint()} {encoder.digest} {encoder.end_token} {holdout_one_in}"
    fingerprint = blake3(identity.encode()).hexdigest()
    progress = build_progress.load(out)
    if progress is not None and progress.fingerprint != fingerprint:
        raise refused(
            f"{out} holds a build of other texts, another tokenizer or other options, which was stopped",
            f"Remove {out} or name another folder. If the texts changed, the build begins again.",
        )
    resumed = progress is not None and progress.place != Place()
    share = progress.holdout_one_in if progress is not None else holdout_one_in or HOLDOUT_ONE_IN
    reason = "given" if holdout_one_in is not None else "the usual share"
    if holdout_one_in is None and share != HOLDOUT_ONE_IN:
        reason = _too_few_reason(HOLDOUT_ONE_IN)
    while True:
        begin = BuildProgress(fingerprint, share)
        try:
            index, empty = _Pass(sources, encoder, out, on_progress).run(progress or begin)
            break
        except _PartEmpty as missing:
            if holdout_one_in is not None or missing.fitting_share is None:
                build_progress.remove(out)
                raise _empty_part_error(missing, share) from None
            progress, share, reason = None, missing.fitting_share, _too_few_reason(share)
    raw = format_index(index)
    parse_index(raw)
    build_progress.finish(out, encoder.raw, raw)
    return Built(index, blake3(raw).hexdigest(), len(raw), share, reason, empty, resumed)


def _too_few_reason(share: int) -> str:
    return f"with 1 in {share} one part would have no document"


def _empty_part_error(missing: _PartEmpty, share: int) -> Exception:
    found = f"of {missing.documents:,} documents none falls into the {missing.part} with 1 in {share} held out"
    if missing.fitting_share is not None:
        return refused(found, f"Say --holdout-one-in {missing.fitting_share}, or add texts.")
    return refused(found, "Add texts. A file is one document, in JSONL a line is one.")


class _Pass:
    """One pass over the sources, with a fixed share of the hold-out."""

    def __init__(self, sources: Sources, encoder: TextEncoder, out: Path, on_progress: ProgressCallback) -> None:
        self._files = sources.files
        self._encoder = encoder
        self._out = out
        self._on_progress = on_progress
        self._end = np.array([encoder.end_token], encoder.dtype)
        self._total = sum(file.nbytes for file in sources.files)

    def run(self, progress: BuildProgress) -> tuple[TokenIndex, int]:
        """Read from the place of `progress` to the end. Return the index and the number of empty documents.

        Raises _PartEmpty, DataError and OSError."""
        with self._writers(progress) as (train, holdout):
            for piece in self._encoded(progress.place):
                document = piece.document
                if document.nbytes == 0:
                    progress = dataclasses.replace(progress, empty=progress.empty + 1)
                    continue
                number = int.from_bytes(document.digest, "big")
                writer = holdout if number % progress.holdout_one_in == 0 else train
                writer.add(piece.tokens)
                if piece.last:
                    writer.add(self._end)
                    closed = writer.end(document.nbytes)
                    progress = _count_document(progress, number)
                    if closed:
                        progress = self._save(progress, document, train, holdout)
                    self._on_progress(document.read, self._total)
            self._complete(progress, train, holdout)
            index = TokenIndex(
                self._encoder.dtype,
                self._encoder.vocab_size,
                self._encoder.end_token,
                self._encoder.digest,
                ShardTable(train.progress.closed),
                ShardTable(holdout.progress.closed),
            )
        return index, progress.empty

    def _encoded(self, place: Place) -> Iterator[EncodedPiece]:
        return encoded(DocumentReader(self._files, place), self._encoder)

    @contextlib.contextmanager
    def _writers(self, progress: BuildProgress) -> Iterator[tuple[ShardWriter, ShardWriter]]:
        dtype = self._encoder.dtype
        build_progress.save(self._out, progress)
        if not (
            restore_files(self._out, "train", dtype, progress.train)
            and restore_files(self._out, "holdout", dtype, progress.holdout)
        ):
            raise refused(
                f"shards are missing from {self._out}, or have another length than when they were written",
                f"Remove {self._out} and build again.",
            )
        train = ShardWriter(self._out, "train", dtype, progress.train)
        holdout = ShardWriter(self._out, "holdout", dtype, progress.holdout)
        try:
            yield train, holdout
        finally:
            train.close_file()
            holdout.close_file()

    def _save(
        self, progress: BuildProgress, document: TextDocument, train: ShardWriter, holdout: ShardWriter
    ) -> BuildProgress:
        for writer in (train, holdout):
            writer.sync()
        progress = dataclasses.replace(
            progress, place=document.next_place, train=train.progress, holdout=holdout.progress
        )
        build_progress.save(self._out, progress)
        for writer in (train, holdout):
            writer.rename_closed()
        return progress

    def _complete(self, progress: BuildProgress, train: ShardWriter, holdout: ShardWriter) -> None:
        for writer in (train, holdout):
            writer.close()
        for writer, part in ((train, "training"), (holdout, "hold-out")):
            if not writer.progress.closed:
                documents = sum(next(iter(progress.divisors.values()), (0, 0)))
                raise _PartEmpty(documents, part, _fitting_share(progress))
        end = Place(len(self._files))
        build_progress.save(
            self._out, dataclasses.replace(progress, place=end, train=train.progress, holdout=holdout.progress)
        )
        for writer in (train, holdout):
            writer.rename_closed()


def _count_document(progress: BuildProgress, number: int) -> BuildProgress:
    """Count for every possible share to which part the document would have gone. `number`: its digest as a number."""
    for divisor in DIVISORS:
        train, holdout = progress.divisors.get(divisor, (0, 0))
        held = number % divisor == 0
        progress.divisors[divisor] = train + (not held), holdout + held
    return progress


def _fitting_share(progress: BuildProgress) -> int | None:
    return next((one for one, (train, holdout) in progress.divisors.items() if train and holdout), None)
