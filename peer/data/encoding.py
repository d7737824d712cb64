"""Opens a tokenizer.json and encodes texts with it.

The file is the operator's own, so it is opened in this process and not in a sandbox."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from blake3 import blake3
from numpy.typing import NDArray

from peer.data.sources import refused
from peer.errors import ModelError
from peer.observe.formatting import amount
from peer.run.files import tokenizer_file
from peer.run.files.token_index import MAX_VOCABULARY, TokenDtype, dtype_for

if TYPE_CHECKING:
    from tokenizers import Tokenizer

Tokens = NDArray[np.uint16] | NDArray[np.uint32]

MAX_TOKENIZER_BYTES = 64 * 2**20
END_TEXT = "<|endoftext|>"
END_TEXTS = (END_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "<|end|>", "<|im_end|>", "[SEP]")
"""Usual names of the token that ends a document, in the order in which they are looked for."""


class TextEncoder:
    """A tokenizer with its end token. Text that spells a special token is encoded like any other text."""

    def __init__(self, raw: bytes, tokenizer: Tokenizer, end_text: str) -> None:
        self.raw = raw
        self.digest = blake3(raw).hexdigest()
        self.turned_off = tokenizer_file.randomness(raw)
        """Random steps of the tokenizer that were turned off, for a person."""
        self.end_text = end_text
        vocabulary = tokenizer.get_vocab()
        self.end_token = vocabulary[end_text]
        self.vocab_size = max(vocabulary.values()) + 1
        self.dtype: TokenDtype = dtype_for(self.vocab_size)
        tokenizer.encode_special_tokens = True
        self._tokenizer = tokenizer
        self._code = "H" if self.dtype == "uint16" else "I"

    def encode(self, texts: Sequence[str]) -> list[Tokens]:
        """Return the tokens of each text, without end tokens.

        The tokenizers library uses RAYON_NUM_THREADS threads, or all cores. The result does not depend on it."""
        found = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [np.frombuffer(array(self._code, one.ids), self.dtype) for one in found]


def open_tokenizer(path: Path, end_text: str | None = None) -> TextEncoder:
    """Open a tokenizer.json. Raises DataError.

    `end_text`: the text of the end token. None: the first of `END_TEXTS` that the tokenizer has."""
    make = "Make one with `peer tokenizer train`, or download the model's tokenizer.json again."
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_TOKENIZER_BYTES + 1)
    except OSError as error:
        raise refused(f"the tokenizer {path} cannot be read: {error.strerror}", make) from error
    if len(raw) > MAX_TOKENIZER_BYTES:
        raise refused(f"the tokenizer {path} is larger than {amount(MAX_TOKENIZER_BYTES, 'bytes')}", make)
    try:
        tokenizer = tokenizer_file.open_tokenizer(raw)
    except ModelError as error:  # volunteers would refuse it as well
        raise refused(f"{path} is not a tokenizer.json that runs take: {error.found}", make) from error
    except ValueError as error:
        raise refused(f"{path} is not a tokenizer.json: {str(error)[:200]}", make) from error
    vocabulary = tokenizer.get_vocab()
    largest = max(vocabulary.values(), default=0)
    if not 1 <= largest < MAX_VOCABULARY:
        raise refused(f"the tokenizer {path} has token numbers up to {largest:,}, at most {MAX_VOCABULARY:,}", make)
    known = [text for text in ((end_text,) if end_text is not None else END_TEXTS) if text in vocabulary]
    if not known:
        wanted = end_text or ", ".join(END_TEXTS)
        raise refused(f"the tokenizer {path} has no end token {wanted}", "Name its end token with --end-token TEXT.")
    return TextEncoder(raw, tokenizer, known[0])
