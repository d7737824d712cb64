"""The tokenizer of a run as `AutoTokenizer.from_pretrained` reads it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from peer.errors import UsageError
from peer.result.model import OpenedRun
from peer.run.sections import BYTE_VALUES

TOKENIZER, SETTINGS = "tokenizer.json", "tokenizer_config.json"


def write_tokenizer(run: OpenedRun, folder: Path) -> None:
    """Write the tokenizer's two files. Raises OSError, and UsageError without the library."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise UsageError(f"{error.name} is not installed", "Install the extra hf: peer help install extras") from error
    section = run.manifest.tokenizer
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": run.manifest.train.context,
        "clean_up_tokenization_spaces": False,
    }
    if section.kind == "bytes":
        (folder / TOKENIZER).write_text(json.dumps(byte_tokenizer(), ensure_ascii=False))
    else:
        path = run.files.run.tokenizer
        assert path is not None, "the tokenizer was asked for"
        assert section.end_token is not None
        shutil.copyfile(path, folder / TOKENIZER)
        end = Tokenizer.from_file(str(path)).id_to_token(section.end_token)
        if end is not None:
            settings |= {"eos_token": end}
    (folder / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n")


def byte_tokenizer() -> dict[str, Any]:
    """Return a tokenizer.json whose tokens are bytes, each of its own value."""
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
    """Return the character that byte-level tokenizers write for each byte: itself where it can be seen."""
    seen = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    hidden = iter(range(BYTE_VALUES, 2 * BYTE_VALUES))
    return [chr(value if value in seen else next(hidden)) for value in range(BYTE_VALUES)]
