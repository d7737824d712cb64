"""Trains a byte-level BPE tokenizer on texts. The same texts always give the same file."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from blake3 import blake3
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from tokenizers.trainers import BpeTrainer

from peer.data.documents import DocumentReader, Place
from peer.data.encoding import END_TEXT
from peer.data.sources import Sources, refused
from peer.errors import file_advice
from peer.whole_files import create_file

BYTES = 256
LEAST_VOCABULARY = BYTES + 1
"""Smallest vocabulary: every byte, and the end token."""
_BATCH = 256


@dataclass(frozen=True, slots=True)
class TrainedTokenizer:
    """Facts of a tokenizer that was written.

    `vocab_size`: smaller than requested if the texts have too few different pairs. `digest`: BLAKE3 of the file."""

    vocab_size: int
    end_token: int
    documents: int
    text_bytes: int
    digest: str
    nbytes: int


def train_tokenizer(
    sources: Sources, vocab_size: int, out: Path, on_progress: Callable[[int, int], None]
) -> TrainedTokenizer:
    """Train a tokenizer and write it to a new file. Raises DataError. `on_progress`: bytes read, bytes in all."""
    _check_new(out)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = _Texts(sources, on_progress)
    tokenizer.train_from_iterator(iter(texts), trainer)
    if texts.documents == 0:
        raise refused("the sources hold no text", "Name files that are not empty.")
    raw = tokenizer.to_str(pretty=False).encode()
    _write_new(out, raw)
    return TrainedTokenizer(
        tokenizer.get_vocab_size(),
        tokenizer.get_vocab()[END_TEXT],
        texts.documents,
        texts.nbytes,
        blake3(raw).hexdigest(),
        len(raw),
    )


class _Texts:
    """Iterates over the texts of all documents in batches, and counts documents and bytes."""

    def __init__(self, sources: Sources, on_progress: Callable[[int, int], None]) -> None:
        self._files = sources.files
        self._total = sum(file.nbytes for file in sources.files)
        self._on_progress = on_progress
        self.documents = 0
        self.nbytes = 0

    def __iter__(self) -> Iterator[list[str]]:
        batch: list[str] = []
        for document, pieces in DocumentReader(self._files, Place()):
            for text in pieces:
                batch.append(text)
                if len(batch) == _BATCH:
                    yield batch
                    batch = []
            self.documents += document.nbytes > 0
            self.nbytes += document.nbytes
            self._on_progress(document.read, self._total)
        yield batch


def _check_new(out: Path) -> None:
    if out.exists() or out.is_symlink():
        raise refused(f"{out} exists already", "Name a new file with --out. None is overwritten.")
    if not out.parent.is_dir():
        raise refused(f"there is no folder {out.parent}", "Make it, or name a file in another one with --out.")


def _write_new(out: Path, raw: bytes) -> None:
    try:
        create_file(out, raw, mode=0o666)
    except FileExistsError as error:
        raise refused(f"{out} exists already", "Name a new file with --out. None is overwritten.") from error
    except OSError as error:
        raise refused(
            f"cannot write {out}: {error.strerror}", file_advice(error, out, "name another file with --out")
        ) from error
