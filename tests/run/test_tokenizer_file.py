from __future__ import annotations

import json
from typing import Any

import pytest

from peer.errors import ModelError
from peer.run.files.tokenizer_file import MOST_TOKENIZER_BYTES, PATTERNS, check_count, check_tokenizer, open_tokenizer

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
    t5 = sequence({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "▁"}, {"type": "NFKC"})
    clip = sequence({"type": "NFC"}, {"type": "Replace", "pattern": {"Regex": r"\s+"}, "content": " "})
    chains = {1.0: None, 2.0: llama, 3.0: clip, 4.0: {"type": "BertNormalizer"}, 18.0: t5, 36.0: albert}
    for growth, normalizer in chains.items():
        assert check_tokenizer(tokenizer(normalizer=normalizer, decoder=replace("▁", " "))) == growth
    qwen = {"type": "Sequence", "pretokenizers": [split({"Regex": LLAMA_3}), {"type": "ByteLevel"}]}
    assert check_tokenizer(tokenizer(normalizer={"type": "NFC"}, pre_tokenizer=qwen)) == 15.0
    decoders = ({"type": "BPEDecoder", "suffix": "</w>"}, {"type": "WordPiece", "prefix": "##"})
    for decoder in (*decoders, {"type": "Metaspace", "replacement": "▁"}):
        check_tokenizer(tokenizer(decoder=decoder))


def test_a_template_repeats_no_text() -> None:
    """The check accepts templates, because whether they are used is decided where the tokenizer is opened."""
    parts = [{"Sequence": {"id": "A", "type_id": 0}}]
    template = {"type": "TemplateProcessing", "single": parts * 50, "pair": parts, "special_tokens": {}}
    model = {"type": "WordLevel", "vocab": {"a": 0, "?": 1}, "unk_token": "?"}
    opened = open_tokenizer(tokenizer(model=model, post_processor=template))
    assert opened.encode("a", add_special_tokens=False).ids == [0]


@pytest.mark.parametrize(("ids", "nbytes", "refused"), [(512, 0, False), (4512, 1000, False), (4513, 1000, True)])
def test_a_text_has_few_tokens_a_byte(ids: int, nbytes: int, refused: bool) -> None:
    if not refused:
        check_count(ids, nbytes)
        return
    with pytest.raises(ModelError, match="4,513 tokens for a text of 1,000 bytes"):
        check_count(ids, nbytes)


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
        ({"normalizer": sequence(*[replace("a", "b" * 10)] * 2)}, "100 characters of one"),
        ({"normalizer": sequence(*[{"type": "ByteLevel"}] * 4)}, "256 characters of one"),
        (
            {"normalizer": sequence(*[replace("l", "\ufdfa"), {"type": "NFKD"}, replace("\u0644", "l")] * 2)},
            "324 chara",
        ),
        ({"normalizer": sequence(*[{"type": "BertNormalizer"}] * 8)}, "characters of one"),
        ({"normalizer": {"type": "NFKC"}, "pre_tokenizer": sequence(*[{"type": "ByteLevel"}] * 2)}, "450 characters"),
        ({"normalizer": sequence(*[{"type": "Strip"}] * 40)}, "of more than 32 parts"),
        ({"normalizer": replace("", "a")}, "replaces nothing by something"),
        (
            {"decoder": {"type": "Replace", "pattern": {"Regex": r"\d"}, "content": "x" * 9}},
            "a decoder that makes more",
        ),
        ({"decoder": {"type": "BPEDecoder", "suffix": ""}}, "a decoder with an empty suffix"),
        ({"decoder": {"type": "CTC", "pad_token": "", "word_delimiter_token": "|"}}, "an empty pad_token"),
        ({"model": {"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "u" * 33}}, "whose unk_token"),
        ({"model": {"type": "BPE", "vocab": {}, "continuing_subword_prefix": "#" * 99}}, "continuing_subword_prefix"),
        ({"model": {"type": "WordPiece", "vocab": {}, "max_input_chars_per_word": 10**9}}, "words of more than"),
        ({"model": {"type": "BPE", "vocab": {"a": 0, "b" * 1000: 0}}}, "two names have one number"),
        ({"model": {"type": "BPE", "vocab": {"a": 0, "b" * 1025: 1}}}, "a token whose name"),
        ({"model": {"type": "BPE", "vocab": {"a": True}}}, "two names have one number"),
        ({"model": {"type": "Unigram", "vocab": [["u" * 1025, 0.0]]}}, "a token whose name"),
        ({"model": {"type": "Unigram", "vocab": [0]}}, "a vocabulary that cannot be read"),
        ({"added_tokens": [{"id": 3, "content": "a" * 1025}]}, "adds a token whose name"),
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
