"""`--set key=value` on a manifest: TOML text in, TOML text out. Comments are lost; the result is signed anew anyway."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Iterable
from typing import Any

from peer.errors import ManifestError, UsageError
from peer.run import sections

SECTIONS: dict[str, type[sections.Section]] = {
    "model": sections.ModelSection,
    "data": sections.DataSection,
    "tokenizer": sections.TokenizerSection,
    "train": sections.TrainSection,
    "optimizer": sections.OptimizerSection,
    "sync": sections.SyncSection,
    "wire": sections.WireSection,
    "limits": sections.LimitsSection,
    "admission": sections.AdmissionSection,
}
TOP = ("format", "name", "seed", "operator", "start")


def apply_overrides(text: str, settings: Iterable[str]) -> str:
    """Set each `key=value`. A key is dotted (`sync.sync_every`) or a field's bare name where only one section has it.
    Raises UsageError for an unknown key, ManifestError when the text is not TOML. Values are not checked here."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ManifestError(f"the manifest is not TOML: {error}") from error
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise UsageError(f"--set {setting!r} has no '='", "Write --set key=value, e.g. --set sync_every=20.")
        section, name = _find(key.strip())
        (table.setdefault(section, {}) if section else table)[name] = _value(value.strip())
    return dump(table)


def _find(key: str) -> tuple[str, str]:
    """(section, field); section "" is the top of the file."""
    known = {**{name: ("", name) for name in TOP}}
    for section, model in SECTIONS.items():
        for field in model.model_fields:
            known[f"{section}.{field}"] = (section, field)
    if key in known:
        return known[key]
    bare = [name for name in known if name.endswith(f".{key}")]
    if len(bare) == 1:
        return known[bare[0]]
    near = bare or difflib.get_close_matches(key, [*known, *(name.split(".")[-1] for name in known)], 3, 0.5)
    raise UsageError(
        f"--set: the manifest has no single key {key!r}", f"Did you mean {' or '.join(near)}?" if near else ""
    )


def _value(text: str) -> Any:
    """A TOML value; anything else is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def dump(table: dict[str, Any]) -> str:
    """TOML of a table of scalars and of tables of scalars, in order."""
    lines = [f"{name} = {_literal(value)}" for name, value in table.items() if not isinstance(value, dict)]
    for section, fields in table.items():
        if isinstance(fields, dict):
            lines += ["", f"[{section}]", *(f"{name} = {_literal(value)}" for name, value in fields.items())]
    return "\n".join(lines) + "\n"


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    return json.dumps(str(value), ensure_ascii=False)
