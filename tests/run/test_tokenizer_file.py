from __future__ import annotations

import json
from typing import Any

import pytest

from peer.errors import ModelError
from peer.run.files.tokenizer_file import MOST_TOKENIZER_BYTES, PATTERNS, check_tokenizer

LLAMA_3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def split(pattern: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


def tokenizer(**parts: Any) -> bytes:
    return json.dumps({"model": {"type": "BPE", "vocab": {}, "merges": []}, "added_tokens": [], **parts}).encode()


def replace(text: str, content: str) -> dict[str, Any]:
    return {"type": "Replace", "pattern": {"String": text}, "content": content}


def sequence(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"type": "Sequence", "normalizers": list(parts)}


def test_parts_of_well_known_tokenizers_are_taken() -> None:
    llama = sequence({"type": "Prepend", "prepend": "▁"}, replace(" ", "▁"))
    albert = sequence(replace("``", '"'), replace("''", '"'), {"type": "NFKD"}, {"type": "Lowercase"})
    t5 = sequence({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}, {"type": "Nmt"})
    for normalizer in (llama, albert, t5, {"type": "ByteLevel"}, None):
        check_tokenizer(tokenizer(normalizer=normalizer, decoder=replace("▁", " ")))


@pytest.mark.parametrize("pattern", [LLAMA_3, O200K, *sorted(PATTERNS)])
def test_patterns_of_well_known_tokenizers_are_taken(pattern: str) -> None:
    parts = [split({"Regex": pattern}), split({"String": " "}), {"type": "ByteLevel", "use_regex": False}]
    check_tokenizer(tokenizer(pre_tokenizer={"type": "Sequence", "pretokenizers": parts}))


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"pre_tokenizer": split({"Regex": "(a+)+$"})}, "a pattern in its pre_tokenizer"),
        ({"normalizer": {"type": "Replace", "pattern": {"Regex": "(x*)*y"}, "content": ""}}, "in its normalizer"),
        ({"decoder": {"type": "Replace", "pattern": {"String": "x" * 500}, "content": ""}}, "in its decoder"),
        ({"pre_tokenizer": split({"Regex": 5})}, "a pattern"),
        ({"pre_tokenizer": {"type": "Custom"}}, "a pre_tokenizer of kind 'Custom'"),
        ({"pre_tokenizer": {"type": ["Split"]}}, "a pre_tokenizer of kind"),
        ({"normalizer": {"type": "Precompiled", "precompiled_charsmap": ""}}, "a normalizer of kind 'Precompiled'"),
        ({"model": {"type": "Neural"}}, "a model of kind 'Neural'"),
        ({"model": 5}, "no table with a model"),
        ({"added_tokens": [{}] * 70_000}, "adds more than"),
        ({"post_processor": [1]}, "a post_processor that is no table"),
        ({"normalizer": sequence(*[replace("a", "b" * 3)] * 2)}, "more than 8 times a text"),
        ({"normalizer": sequence(*[{"type": "ByteLevel"}] * 2)}, "more than 8 times a text"),
        ({"normalizer": sequence(*[{"type": "NFC"}] * 40)}, "has many parts"),
        ({"normalizer": replace("", "a")}, "replaces nothing by something"),
        ({"normalizer": {"type": "Replace", "pattern": {"Regex": r"\d"}, "content": "x" * 9}}, "more than 8 times"),
        ({"normalizer": replace("a", "b" * 200)}, "a content of more than 16 characters"),
        ({"decoder": replace("a" * 99, "b" * 200)}, "a content of more than 16 characters"),
        ({"normalizer": {"type": "Prepend", "prepend": "x" * 99}}, "a prepend of more than 16 characters"),
        ({"pre_tokenizer": {"type": "Metaspace", "replacement": 5}}, "a replacement of more than"),
    ],
)
def test_what_a_tokenizer_must_not_hold_is_named(parts: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError) as caught:
        check_tokenizer(tokenizer(**parts))
    assert words in caught.value.found


def test_a_pattern_hidden_in_sequences_is_found_and_endless_ones_are_refused() -> None:
    part: Any = split({"Regex": "(a+)+$"})
    for _ in range(5):
        part = {"type": "Sequence", "pretokenizers": [part]}
    with pytest.raises(ModelError, match="a pattern"):
        check_tokenizer(tokenizer(pre_tokenizer=part))
    for _ in range(5):
        part = {"type": "Sequence", "pretokenizers": [part]}
    with pytest.raises(ModelError, match="nested too deep"):
        check_tokenizer(tokenizer(pre_tokenizer=part))


@pytest.mark.parametrize("raw", [b"", b"[]", b"{" * 10**6, bytes(MOST_TOKENIZER_BYTES + 1)], ids=len)
def test_bytes_that_are_no_tokenizer_are_refused(raw: bytes) -> None:
    with pytest.raises(ModelError):
        check_tokenizer(raw)
