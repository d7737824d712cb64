"""Checks a foreign tokenizer.json before the tokenizers library opens it. The library compiles a pattern into a
backtracking engine, so only the patterns of well-known tokenizers are accepted."""

from __future__ import annotations

import codecs
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from peer.errors import ModelError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MOST_TOKENIZER_BYTES = 64 * 2**20
MOST_TOKENS, MOST_ADDED, LONGEST_STRING = 2**24, 2**16, 256
DEEPEST = 8
MOST_PARTS = 32
"""Largest number of normalizers, and of each other kind of part. The parts of a Sequence count one by one."""
LONGEST_CONTENT = 16
"""Characters that a part may insert or prepend."""
LONGEST_NAME, LONGEST_UNKNOWN = 1024, 32
"""Characters of a token's name, and of the name of the unknown token, which may stand for any piece of text."""
LONGEST_WORD = 10_000
"""Characters of the longest word that a model looks up. 100 is usual."""
GROWTH = {
    "normalizer": {"NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18, "Lowercase": 2, "BertNormalizer": 4, "ByteLevel": 4},
    "pre_tokenizer": {"ByteLevel": 5, "Metaspace": 2},
    "decoder": {"WordPiece": 2},
}
"""Most characters that a part makes of one character. Values for normal forms are Unicode's (UAX 15). ByteLevel turns
bytes into characters and may insert a space before each piece. For Replace and Prepend the number depends on their
content."""
MOST_GROWTH = 96.0
"""Most characters that normalizers and pre-tokenizers together may make of one: NFKC before ByteLevel makes 90."""
MOST_DECODER_GROWTH = 8.0
MOST_IDS_A_BYTE = 4
"""Tokens per byte of text. Well-known tokenizers give at most one, and one more at the front."""
END_TOKENS = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|eos|>",
    "<｜end▁of▁sentence｜>",
    "<|im_end|>",
    "[EOS]",
)
"""Usual names of the token that ends a document, the likeliest first."""
BEGIN_TOKENS = (
    "<|begin_of_text|>",
    "<|startoftext|>",
    "<s>",
    "<bos>",
    "<|bos|>",
    "<｜begin▁of▁sentence｜>",
    "[BOS]",
)
"""Usual names of the token that begins a document, the likeliest first."""
PAD_TOKENS = ("<pad>", "<|pad|>", "<|padding|>", "[PAD]", "<｜▁pad▁｜>", "<|finetune_right_pad_id|>")
"""Usual names of the padding token, the likeliest first."""
PARTS: dict[str, str] = {
    "normalizer": "Sequence NFC NFD NFKC NFKD Lowercase Prepend Replace Strip StripAccents BertNormalizer "
    "ByteLevel Nmt",
    "pre_tokenizer": "Sequence ByteLevel Split Digits Whitespace WhitespaceSplit Metaspace Punctuation "
    "BertPreTokenizer UnicodeScripts CharDelimiterSplit",
    "model": "BPE Unigram WordPiece WordLevel",
    "post_processor": "Sequence ByteLevel TemplateProcessing BertProcessing RobertaProcessing",
    "decoder": "Sequence ByteLevel Metaspace Replace ByteFallback Fuse Strip WordPiece BPEDecoder CTC",
}
"""Accepted kinds of each part of a tokenizer."""
INNER = ("normalizers", "pretokenizers", "processors", "decoders")
"""Keys under which a Sequence lists its parts."""
_SUFFIXES = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_BLANK = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_CASED = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+", rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*"
PATTERNS = frozenset(
    {
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",  # gpt2
        r"(?:'s|'t|'re|'ve|'m|'ll|'d)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        rf"{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{_REST}",  # cl100k
        rf"{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{_REST}",  # qwen2
        rf"{_SUFFIXES}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*{_REST}",
        rf"{_CASED[0]}{_SUFFIXES}?|{_CASED[1]}{_SUFFIXES}?|\p{{N}}{{1,3}}|{_BLANK}{_REST}",  # o200k
        rf"{_CASED[0]}|{_CASED[1]}|\p{{N}}|{_BLANK}{_REST}",  # tekken
        r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
        rf" ?[\p{{P}}\p{{S}}]+[\r\n]*{_REST}",  # deepseek v3
        "[一-龥぀-ゟ゠-ヿ]+",
        "[一-龥ࠀ-一가-퟿]+",
        r"[\r\n]",
        r"\s?\p{L}+",
        r"\s?\p{P}+",
        r"\s+$",
        r"\p{N}{1,3}",
        r"\p{N}",
        r"\d{1,3}",
        r"\d",
        "[0-9]",
        "[0-9][0-9][0-9]",  # falcon
        r" ?[^(\s|[.,!?…。，、।۔،])]+",  # bloom
        r"\s+",
        r" {2,}",
        " ",
    }
)
"""Accepted patterns: those of gpt2, cl100k (llama 3), qwen2 and 3.5, o200k, tekken, deepseek, falcon and bloom."""


RANDOM = {"dropout": "BPE dropout", "alpha": "Unigram sampling", "nbest_size": "Unigram sampling"}
"""Attributes of a model that make its tokens random, with their names for a person."""


def open_tokenizer(raw: bytes) -> Tokenizer:
    """Open a tokenizer.json so that a text always has the same tokens, and all of them. Raises ValueError, and
    ModelError as `check_tokenizer`.

    Whatever the file says, dropout and sampling are disabled, and so are truncation, padding and templates, which may
    repeat a text. A byte order mark is skipped."""
    check_tokenizer(raw)
    from tokenizers import Tokenizer  # imported late, because most runs do not need this library

    tokenizer = Tokenizer.from_buffer(raw.removeprefix(codecs.BOM_UTF8))
    for attribute in RANDOM:
        if getattr(tokenizer.model, attribute, None) is not None:
            setattr(tokenizer.model, attribute, None)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.post_processor = None
    return tokenizer


def randomness(raw: bytes) -> list[str]:
    """Return the sources of randomness in a tokenizer.json, for a person. The library must be able to open it."""
    model = json.loads(raw)["model"]
    return sorted({f"{name} {model[key]}" for key, name in RANDOM.items() if model.get(key)})


@dataclass(frozen=True, slots=True)
class TokenNames:
    """The names of a tokenizer's tokens by id. `special`: ids of tokens that no text contains."""

    names: Mapping[int, str]
    special: frozenset[int]

    def first(self, usual: Iterable[str]) -> int | None:
        """Return the id of the special token with the first of these names that exists. None: none exists."""
        ids = {self.names[token]: token for token in self.special}
        return next((ids[name] for name in usual if name in ids), None)


def token_names(raw: bytes) -> TokenNames:
    """Read the names of all tokens without the tokenizers library. Raises ModelError."""
    table = _table(raw)
    vocabulary, added = table["model"].get("vocab"), table.get("added_tokens") or []
    try:
        if isinstance(vocabulary, dict):
            names = {int(token): str(name) for name, token in vocabulary.items()}
        else:  # of Unigram: a list of [name, score]
            names = {token: str(entry[0]) for token, entry in enumerate(vocabulary or ())}
        names |= {int(one["id"]): str(one["content"]) for one in added}
        special = frozenset(int(one["id"]) for one in added if one.get("special"))
    except (TypeError, ValueError, KeyError, IndexError, AttributeError) as error:
        raise _refused("has a vocabulary that cannot be read") from error
    return TokenNames(names, special)


def _table(raw: bytes) -> dict[str, Any]:
    """Parse a tokenizer.json. Raises ModelError."""
    if len(raw) > MOST_TOKENIZER_BYTES:
        raise _refused(f"has {len(raw):,} bytes, at most {MOST_TOKENIZER_BYTES:,} are read")
    try:
        table = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _refused(f"is not JSON: {str(error)[:200]}") from error
    if not isinstance(table, dict) or not isinstance(table.get("model"), dict):
        raise _refused("is no table with a model")
    return table


def check_tokenizer(raw: bytes) -> float:
    """Raise ModelError, which names the part, when a tokenizer.json has something that is not accepted. Return the most
    characters that its parts make of one character of a text."""
    table = _table(raw)
    growth = {name: _growth_of_all(table, name, kinds) for name, kinds in PARTS.items()}
    made = growth["normalizer"] * growth["pre_tokenizer"]
    if made > MOST_GROWTH:
        raise _refused(f"makes up to {made:g} characters of one, and at most {MOST_GROWTH:g} are taken")
    if growth["decoder"] > MOST_DECODER_GROWTH:
        raise _refused(f"has a decoder that makes more than {MOST_DECODER_GROWTH:g} characters of one")
    _check_model(table["model"])
    added = table.get("added_tokens") or []
    if not isinstance(added, list) or len(added) > MOST_ADDED:
        raise _refused(f"adds more than {MOST_ADDED:,} tokens")
    if not all(isinstance(one, dict) and _is_name(one.get("content", "")) for one in added):
        raise _refused(f"adds a token whose name is no text of at most {LONGEST_NAME:,} characters")
    return made


def check_count(ids: int, nbytes: int) -> None:
    """Raise ModelError when `ids` tokens are far too many for a text of `nbytes` bytes."""
    if ids > MOST_IDS_A_BYTE * nbytes + LONGEST_CONTENT * MOST_PARTS:
        raise _refused(f"gives {ids:,} tokens for a text of {nbytes:,} bytes")


def _growth_of_all(table: Mapping[str, Any], name: str, kinds: str) -> float:
    """Check the parts of one kind, and return the most characters that they make together of one."""
    growth = 1.0
    for count, part in enumerate(_parts(table.get(name), name, 0), 1):
        _check(name, part, kinds)
        growth *= max(1.0, _growth(name, part))
        if count > MOST_PARTS:
            raise _refused(f"has a {name} of more than {MOST_PARTS} parts")
    return growth


def _is_name(text: object) -> bool:
    return isinstance(text, str) and len(text) <= LONGEST_NAME


def _check_model(model: Mapping[str, Any]) -> None:
    """Check the token names of a model. A name is as long as its piece of text, except for the unknown token and for
    two names with one id, so those are bounded or refused."""
    limits = {"unk_token": LONGEST_UNKNOWN}
    limits |= dict.fromkeys(("continuing_subword_prefix", "end_of_word_suffix"), LONGEST_CONTENT)
    for key, most in limits.items():
        if model.get(key) is not None and not (isinstance(model[key], str) and len(model[key]) <= most):
            raise _refused(f"has a model whose {key} is no text of at most {most} characters")
    word = model.get("max_input_chars_per_word", 0)
    if type(word) is not int or not 0 <= word <= LONGEST_WORD:
        raise _refused(f"has a model that looks at words of more than {LONGEST_WORD:,} characters")
    vocabulary = model.get("vocab") or {}
    if isinstance(vocabulary, dict):
        names, numbers = list(vocabulary), list(vocabulary.values())
    elif isinstance(vocabulary, list) and all(isinstance(one, list) and one for one in vocabulary):  # of Unigram
        names, numbers = [one[0] for one in vocabulary], list(range(len(vocabulary)))
    else:
        raise _refused("has a vocabulary that cannot be read")
    if not all(map(_is_name, names)):
        raise _refused(f"has a token whose name is no text of at most {LONGEST_NAME:,} characters")
    if not all(type(number) is int for number in numbers) or len(set(numbers)) < len(numbers):
        raise _refused("has a vocabulary in which two names have one number")


def _parts(part: Any, name: str, depth: int) -> Iterator[dict[str, Any]]:
    """Yield a part, and recursively the parts of a Sequence."""
    if part is None:
        return
    if not isinstance(part, dict) or depth > DEEPEST:
        raise _refused(f"has a {name} that is no table, or nested too deep")
    yield part
    for key in INNER:
        for inner in part.get(key) or ():
            yield from _parts(inner, name, depth + 1)


def _check(name: str, part: dict[str, Any], kinds: str) -> None:
    kind = part.get("type", "BPE" if name == "model" else None)
    if not isinstance(kind, str) or kind not in kinds.split():
        raise _refused(f"has a {name} of kind {str(kind)[:80]!r}, which is not taken")
    pattern = part.get("pattern")
    if pattern is None:
        return
    match pattern:
        case {"String": str(text)} if len(text) <= LONGEST_STRING:
            return
        case {"Regex": str(text)} if text in PATTERNS:
            return
    raise _refused(f"has a pattern in its {name} that is not one of a well-known tokenizer: {str(pattern)[:120]}")


def _growth(name: str, part: dict[str, Any]) -> float:
    """Return the most characters that a part makes of one. Raises ModelError."""
    kind = part.get("type")
    for key in (
        "content",
        "prepend",
        "prefix",
        "suffix",
        "replacement",
        "str_rep",
        "pad_token",
        "word_delimiter_token",
    ):
        text = part.get(key)
        if text is not None and not (isinstance(text, str) and len(text) <= LONGEST_CONTENT):
            raise _refused(f"has a {name} with a {key} of more than {LONGEST_CONTENT} characters")
        if text == "" and name == "decoder" and kind != "Replace":  # an empty text matches between all characters
            raise _refused(f"has a decoder with an empty {key}")
    if kind == "Prepend":
        return 1.0 + len(part.get("prepend") or "")
    if kind != "Replace":
        return float(GROWTH.get(name, {}).get(str(kind), 1))
    match part.get("pattern"):
        case {"String": ""}:
            raise _refused(f"has a {name} that replaces nothing by something")
        case {"String": str(text)}:
            return len(part.get("content") or "") / len(text)
    return float(len(part.get("content") or ""))  # a pattern may match a single character


def _refused(what: str) -> ModelError:
    fix = "The operator has to name a tokenizer that `peer tokenizer train` made, or that of a well-known model."
    return ModelError(f"the tokenizer.json {what}", fix)
