"""Checks a foreign config.json before any library opens it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from peer.errors import ModelError

MOST_CONFIG_BYTES = 2**20
MOST_VALUES, DEEPEST, LONGEST_TEXT = 50_000, 16, 4096
MOST_LAYERS, MOST_VOCABULARY, MOST_NUMBER = 10_000, 2**24, 2**31 - 1
FOREIGN_CODE = ("auto_map", "custom_pipelines", "trust_remote_code")
"""Keys that name foreign code."""
FOREIGN_KERNELS = re.compile(r"_?(attn|experts)_implementation(_internal)?|use_kernels|kernel_config|backbone")
"""Keys that choose how a model is computed. Some of their values make transformers download code."""
COMPRESSED = ("quantization_config", "compression_config")
UNQUANTIZED = (
    "Give the folder of the model that the quantized one was made from. Its weights are float32, bfloat16 or float16."
)
IGNORED = ("_name_or_path",)
"""Keys that record the origin of a config. They are removed."""
WHOLE = "Give the config.json of one model, as transformers writes it."
LARGE = "Name a smaller model."
_MODEL_TYPE = re.compile(r"[a-z0-9][a-z0-9_.-]{0,63}")
_PATH = re.compile(r"[/\\]|\.\.")


def read_config(raw: bytes) -> dict[str, Any]:
    """Return a config that is safe to pass to transformers. Raises ModelError, which names the offending key."""
    if len(raw) > MOST_CONFIG_BYTES:
        raise _refused(f"has {len(raw):,} bytes, at most {MOST_CONFIG_BYTES:,} are read", WHOLE)
    try:
        table = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise _refused(f"is not JSON: {str(error)[:200]}", WHOLE) from error
    if not isinstance(table, dict):
        raise _refused("is no table", WHOLE)
    config: dict[str, Any] = _cleaned(table)
    for key in COMPRESSED:  # checked first: such a config often names foreign code too, and this error is clearer
        _check((key,), config.get(key))
    for count, (path, value) in enumerate(_values(config, ())):
        if count >= MOST_VALUES:
            raise _refused(f"has more than {MOST_VALUES:,} values", LARGE)
        _check(path, value)
    model_type = config.get("model_type")
    if not isinstance(model_type, str) or not _MODEL_TYPE.fullmatch(model_type):
        raise _refused(
            f"names no model_type ({str(model_type)[:80]!r})",
            'Give the config.json of a language model of transformers. It has a line like "model_type": "llama".',
        )
    return config


def _cleaned(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _cleaned(item) for key, item in value.items() if key not in IGNORED}
    return [_cleaned(item) for item in value] if isinstance(value, list) else value


def _values(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield each value with the keys that lead to it. Tables and lists precede their items."""
    if len(path) > DEEPEST:
        raise _refused(f"is nested more than {DEEPEST} deep", LARGE)
    yield path, value
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _values(item, (*path, key))
    elif isinstance(value, list):
        for item in value:
            yield from _values(item, (*path, ""))


def _check(path: tuple[str, ...], value: Any) -> None:
    key = next((part for part in reversed(path) if part), "")
    name = ".".join(part for part in path if part)[:80]
    if value is not None and key in FOREIGN_CODE:
        raise _refused(
            f"names code of others ({name}), which is never run",
            f"Take {name} out if transformers itself has this model_type. Else name a model that it has.",
        )
    if value is not None and FOREIGN_KERNELS.fullmatch(key):
        raise _refused(
            f"chooses how the model is computed ({name}), which is left to each machine",
            f"Take {name} out of config.json.",
        )
    if value is not None and key in COMPRESSED:
        raise _refused(
            f"names a quantized model ({name}{_method(value)}), which cannot be trained",
            UNQUANTIZED,
        )
    if isinstance(value, str):
        if len(value) > LONGEST_TEXT:
            raise _refused(f"has a text of more than {LONGEST_TEXT:,} characters ({name})", f"Take {name} out.")
        if _PATH.search(value):
            raise _refused(f"holds a path ({name}: {value[:80]!r})", f"Take {name} out. A run names files by digest.")
    elif isinstance(value, int) and abs(value) > _most(key):
        raise _refused(f"has {name} = {_short(value)}, more than {_most(key):,}", LARGE)


def _most(key: str) -> int:
    lowered = key.lower()
    if "vocab" in lowered:
        return MOST_VOCABULARY
    return MOST_LAYERS if "layer" in lowered or "block" in lowered or "depth" in lowered else MOST_NUMBER


def _short(value: int) -> str:
    return str(value) if abs(value) < 10**18 else f"about 2^{value.bit_length()}"


def _method(value: Any) -> str:
    """Return the quantization method for the error, such as GPTQ or AWQ. Empty: none is named."""
    method = value.get("quant_method") if isinstance(value, dict) else None
    return f": {method[:40]}" if isinstance(method, str) and method.isprintable() else ""


def _refused(what: str, fix: str) -> ModelError:
    return ModelError(f"the model's config {what}", fix)
