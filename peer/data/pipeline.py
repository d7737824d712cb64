"""Tokenizes the pieces of documents in batches of bounded size, while the next ones are read."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from peer.data.documents import Read, TextDocument
from peer.data.encoding import TextEncoder, Tokens

BATCH_CHARACTERS = 2**21
BATCH_PIECES = 4096
ENCODING = 2
"""Number of batches that are encoded at the same time. Near its end a batch leaves threads idle, which the next
uses."""


@dataclass(frozen=True, slots=True)
class EncodedPiece:
    """The tokens of a piece, without an end token. `last`: whether it is the last piece of its document."""

    document: TextDocument
    tokens: Tokens
    last: bool


@dataclass(frozen=True, slots=True)
class _Piece:
    """A piece of a document that is not tokenized yet. `last`: whether it is the document's last."""

    document: TextDocument
    text: str
    last: bool


def encoded(documents: Iterable[Read], encoder: TextEncoder) -> Iterator[EncodedPiece]:
    """Yield the encoded pieces of all documents, in their order."""
    with ThreadPoolExecutor(ENCODING, "encode") as pool:
        waiting: deque[tuple[list[_Piece], Future[list[Tokens]]]] = deque()
        try:
            for batch in _batches(documents):
                waiting.append((batch, pool.submit(encoder.encode, [piece.text for piece in batch])))
                if len(waiting) > ENCODING:
                    yield from _result(*waiting.popleft())
            while waiting:
                yield from _result(*waiting.popleft())
        finally:
            for _, future in waiting:
                future.cancel()


def _result(batch: list[_Piece], future: Future[list[Tokens]]) -> Iterator[EncodedPiece]:
    for piece, tokens in zip(batch, future.result(), strict=True):
        yield EncodedPiece(piece.document, tokens, piece.last)


def _batches(documents: Iterable[Read]) -> Iterator[list[_Piece]]:
    batch: list[_Piece] = []
    characters = 0
    for piece in _pieces(documents):
        batch.append(piece)
        characters += len(piece.text)
        if characters >= BATCH_CHARACTERS or len(batch) == BATCH_PIECES:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _pieces(documents: Iterable[Read]) -> Iterator[_Piece]:
    for document, texts in documents:
        before = next(texts)
        for text in texts:
            yield _Piece(document, before, False)
            before = text
        yield _Piece(document, before, True)
