"""Writes a run's tokenizer for `AutoTokenizer.from_pretrained`, and determines its special tokens: begin, end and
padding."""

from __future__ import annotations

import codecs
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from peer.errors import UsageError
from peer.result.model import OpenedRun
from peer.run.files.tokenizer_file import BEGIN_TOKENS, MOST_TOKENIZER_BYTES, PAD_TOKENS, TokenNames, token_names
from peer.run.sections import BYTE_VALUES
from peer.state.files import read_small

TOKENIZER, SETTINGS = "tokenizer.json", "tokenizer_config.json"


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Ids of the special tokens that begin a text, end it, and pad a batch. None: the run's tokenizer has no such
    token."""

    names: TokenNames
    begin: int | None = None
    end: int | list[int] | None = None
    pad: int | None = None

    def ids(self) -> dict[str, int | list[int] | None]:
        """Return the tokens as fields of a config."""
        return {"bos_token_id": self.begin, "eos_token_id": self.end, "pad_token_id": self.pad}

    def for_model(self, config: Any, made: Any) -> SpecialTokens:
        """Return these tokens, completed by the model's config as far as the run's tokenizer agrees.

        `config` may name several end tokens, if the run's own is among them, and special tokens with unusual names. The
        model's own padding token is kept if a module of `made` computes with it."""
        begin, end, pad = (getattr(config, f"{name}_token_id", None) for name in ("bos", "eos", "pad"))
        padding = {getattr(module, "padding_idx", None) for module in made.modules()} - {None}
        several = isinstance(end, list) and self.end in end and self.names.special.issuperset(end)
        return replace(
            self,
            begin=begin if begin in self.names.special else self.begin,
            end=end if several else self.end,
            pad=pad if pad in self.names.special or pad in padding else self.pad,
        )


def special_tokens(run: OpenedRun) -> SpecialTokens:
    """Return the special tokens of a run's tokenizer, found by their usual names. Raises ModelError and UsageError."""
    if run.manifest.tokenizer.kind == "bytes":
        return SpecialTokens(TokenNames({}, frozenset()))
    path = run.files.run.tokenizer
    assert path is not None, "the tokenizer was asked for"
    try:
        names = token_names(read_small(path, MOST_TOKENIZER_BYTES))
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}", "Make the file readable.") from error
    return SpecialTokens(names, names.first(BEGIN_TOKENS), run.manifest.tokenizer.end_token, names.first(PAD_TOKENS))


def write_tokenizer(run: OpenedRun, tokens: SpecialTokens, folder: Path) -> None:
    """Write the two files of the tokenizer. Raises OSError."""
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": run.manifest.train.context,
        "clean_up_tokenization_spaces": False,
    }
    if run.manifest.tokenizer.kind == "bytes":
        (folder / TOKENIZER).write_text(json.dumps(byte_tokenizer(), ensure_ascii=False))
    else:
        path = run.files.run.tokenizer
        assert path is not None, "the tokenizer was asked for"
        # Without a byte order mark, which the tokenizers library refuses.
        (folder / TOKENIZER).write_bytes(path.read_bytes().removeprefix(codecs.BOM_UTF8))
        # Of several end tokens, the one that ended the run's documents.
        named = {"bos_token": tokens.begin, "eos_token": run.manifest.tokenizer.end_token, "pad_token": tokens.pad}
        found = {kind: tokens.names.names.get(token) for kind, token in named.items() if token is not None}
        settings |= {kind: name for kind, name in found.items() if name is not None}
    (folder / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n")


def byte_tokenizer() -> dict[str, Any]:
    """Return the contents of a tokenizer.json whose token ids are byte values."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    vocabulary = {character: value for value, character in enumerate(_byte_characters())}
    model: dict[str, Any] = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None}
    model |= {"end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": level,
        "post_processor": None,
        "decoder": level,
        "model": {**model, "vocab": vocabulary, "merges": []},
    }


def _byte_characters() -> list[str]:
    """Return the character that byte-level tokenizers use for each byte value: the character itself if it is
    printable."""
    seen = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    hidden = iter(range(BYTE_VALUES, 2 * BYTE_VALUES))
    return [chr(value if value in seen else next(hidden)) for value in range(BYTE_VALUES)]
