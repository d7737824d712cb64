"""Recomputes the batches that a peer trained on, from the run's manifest, its data and the peer's journal.

`python -m peer.trainer.data.recompute MANIFEST JOURNAL PEER_ID [DATA]` prints a line for each batch whose work was
applied: round, fragment, place in the data, and the digest of the windows as in `trail.log`. DATA is the folder that
`peer data build` made, or a folder of own texts in a run whose tokens are bytes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from peer.errors import DataError
from peer.observe import events
from peer.observe.event_codec import read_lines
from peer.protocol.data_span import cursor_text, parse_cursor, parse_skips
from peer.protocol.sampling import Sampler
from peer.run.files.token_index import INDEX_FILE, shard_file
from peer.run.manifest import Manifest, load_signed
from peer.trainer.batch_log import digest_of
from peer.trainer.batches import Batch, gather, skip_cursors, skips_at
from peer.trainer.data.corpus import Tokens
from peer.trainer.data.load import load_corpus
from peer.trainer.data.tokens import read_index


@dataclass(frozen=True, slots=True)
class DrawnAgain:
    """A recomputed batch, with the round and fragment whose work it belongs to."""

    round: int
    fragment: int
    batch: Batch


@dataclass(frozen=True, slots=True)
class _Shards:
    """Access to the training shards by their number."""

    tokens: list[int]
    """Number of tokens of each shard."""
    read: Callable[[int], Tokens]
    """Returns a shard's tokens."""


def recompute(manifest: Manifest, peer_id: str, journal: Path, data: Path | None) -> Iterator[DrawnAgain]:
    """Yield the batches of all rounds in a journal, in its order.

    Raises DataError, OSError for a file that cannot be read, and ValueError for a span of data that no sequence of
    batches covers exactly."""
    shards, train = _shards(manifest, data), manifest.train
    sampler = Sampler(manifest.seed, peer_id, train.context, shards.tokens)
    for line in read_lines(journal):
        event = line[0] if line is not None else None
        if isinstance(event, events.RoundEnded) and event.data_from:
            for batch in _span(sampler, event, shards, train.batch, train.context):
                yield DrawnAgain(event.round, event.fragment, batch)


def _span(sampler: Sampler, work: events.RoundEnded, shards: _Shards, batch: int, context: int) -> Iterator[Batch]:
    cursor, end, skipped = parse_cursor(work.data_from), parse_cursor(work.data_to), parse_skips(work.data_skipped)
    while cursor < end:
        drawn = sampler.replay(cursor, batch, skips_at(cursor, skipped))
        windows = gather(drawn.windows, shards.read, context)
        yield Batch(windows, cursor, drawn.cursor, skip_cursors(cursor, drawn.skipped))
        cursor = drawn.cursor
    if cursor != end:
        raise ValueError(f"round {work.round} ends at {cursor_text(end)}, no batch does")


def _shards(manifest: Manifest, data: Path | None) -> _Shards:
    section = manifest.data
    if section.kind != "tokens":
        corpus = load_corpus(section, str(data) if data else None, manifest.train.context)
        return _Shards(list(corpus.tokens_per_shard), corpus.shard)
    if data is None:
        raise DataError("the shards of the run's data are needed", "Name the folder of `peer data build` as well.")
    assert section.index is not None
    index = read_index(str(data / INDEX_FILE), section.index.digest)
    dtype = np.dtype(index.dtype).newbyteorder("<")

    @lru_cache(maxsize=4)
    def read(number: int) -> Tokens:
        tokens: Tokens = np.memmap(data / shard_file("train", number), dtype, mode="r")
        return tokens

    return _Shards(index.train.tokens.tolist(), read)


def main(manifest: str, journal: str, peer_id: str, data: str | None = None) -> None:
    """Print the recomputed batches: see the module."""
    signed = load_signed(Path(manifest))
    for again in recompute(signed.manifest, peer_id, Path(journal), Path(data) if data else None):
        place = cursor_text(again.batch.begin)
        sys.stdout.write(f"{again.round} {again.fragment} {place} {digest_of(again.batch.windows)}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
