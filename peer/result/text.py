"""Converts text to tokens of a run and back."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from peer.errors import UsageError
from peer.installation import install_extras
from peer.result.model import OpenedRun
from peer.run.files.tokenizer_file import check_count, open_tokenizer

UNFINISHED = "\ufffd"
"""Replacement character, with which a decoded text ends while the bytes of its last character are incomplete."""


class TextCoder(Protocol):
    """Converts text to tokens and back."""

    def encode(self, text: str) -> list[int]: ...

    def decode(self, tokens: Sequence[int]) -> str: ...


class ByteCoder:
    """A coder whose tokens are the bytes of UTF-8."""

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

    def decode(self, tokens: Sequence[int]) -> str:
        return bytes(tokens).decode(errors="replace")


class FileCoder:
    """A coder for a tokenizer.json, which must have been checked in a separate process before."""

    def __init__(self, path: Path) -> None:
        """Raises UsageError when the tokenizers library is missing."""
        try:
            self._tokenizer: Any = open_tokenizer(path.read_bytes())
        except ImportError as error:
            raise UsageError(f"{error.name} is not installed", install_extras("hf")) from error

    def encode(self, text: str) -> list[int]:
        """Return the tokens of a text. Raises ModelError for a tokenizer that gives implausibly many tokens."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        check_count(len(ids), len(text.encode()))
        return ids

    def decode(self, tokens: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=False)
        return text


def coder_of(run: OpenedRun) -> TextCoder:
    """Return the coder of a run's tokenizer. Raises UsageError."""
    if run.manifest.tokenizer.kind == "bytes":
        return ByteCoder()
    path = run.files.run.tokenizer
    assert path is not None, "the tokenizer was asked for"
    return FileCoder(path)


class TextStream:
    """Converts a stream of tokens to text, as soon as characters are complete."""

    def __init__(self, coder: TextCoder, prompt: Sequence[int]) -> None:
        """`prompt`: tokens before the stream, whose text is not returned."""
        self._coder = coder
        self._tokens = list(prompt)
        self._emitted = len(coder.decode(self._tokens))

    def add(self, token: int) -> str:
        """Return the characters that this token completes."""
        self._tokens.append(token)
        text = self._coder.decode(self._tokens)
        return "" if text.endswith(UNFINISHED) else self._new(text)

    def end(self) -> str:
        """Return the remaining text, with incomplete characters replaced."""
        return self._new(self._coder.decode(self._tokens))

    def _new(self, text: str) -> str:
        told, self._emitted = self._emitted, max(self._emitted, len(text))
        return text[told:]
