"""Applies `--set key=value` to a manifest: TOML text in, TOML text out. Comments are preserved. The result is
unsigned."""

from __future__ import annotations

import difflib
import json
import re
import tomllib
from collections.abc import Iterable
from typing import Any

import tomlkit
from pydantic.fields import FieldInfo
from tomlkit.container import Container
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import AbstractTable, Item

from peer.errors import ManifestError, UsageError, toml_error
from peer.run import sections
from peer.run.files.section import Section

SECTIONS: dict[str, type[Section]] = {
    "model": sections.LlamaSection,
    "data": sections.DataSection,
    "tokenizer": sections.TokenizerSection,
    "train": sections.TrainSection,
    "optimizer": sections.OptimizerSection,
    "sync": sections.SyncSection,
    "wire": sections.WireSection,
    "limits": sections.LimitsSection,
    "admission": sections.AdmissionSection,
}
"""Type of each section. For `model` that of its default kind."""
TOP = {"format": "int", "name": "str", "seed": "int", "operator": "str", "start": "float", "init": "str"}
"""Fields above the first section, with their types."""
ROW = 8
"""Values per line of a list."""
_NUMBER = re.compile(r"[+-]?(\d{1,15}\.?\d{0,15}|\.\d{1,15})([eE][+-]?\d{1,3})?")
"""A number as people write it, including forms that TOML does not allow."""
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def section_type(name: str, given: dict[str, Any]) -> type[Section]:
    """Return the type of a section, given its raw values."""
    kind = given.get("kind")
    return sections.MODELS.get(kind, SECTIONS[name]) if name == "model" and isinstance(kind, str) else SECTIONS[name]


def fields_of(section: str) -> dict[str, FieldInfo]:
    """Return the fields of a section, of all its kinds together."""
    kinds = sections.MODELS.values() if section == "model" else (SECTIONS[section],)
    return {name: info for kind in kinds for name, info in kind.model_fields.items()}


def apply_overrides(text: str, settings: Iterable[str]) -> str:
    """Set each `key=value`. A key is dotted (`sync.sync_every`), or the bare name of a field that only one section has.
    Values are not checked.

    Raises UsageError for an unknown key, ManifestError when the text is not TOML."""
    try:
        table = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"the manifest is not TOML: {toml_error(error, text)}") from error
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals:
            raise UsageError(f"--set {setting!r} has no '='", "Write --set key=value, e.g. --set sync_every=20.")
        section, name = _find(key.strip())
        fields = table.setdefault(section, {}) if section else table
        if not isinstance(fields, dict):
            raise ManifestError(f"{section} is not a section of the manifest", f"Write [{section}] above its keys.")
        fields[name] = _value(value.strip(), section, name)
    return written(text, table)


def with_sections(text: str, given: dict[str, dict[str, Any]], format_: int = 2) -> str:
    """Replace sections of a manifest by these. `format_`: the format that they need. The text must be valid TOML."""
    table = tomllib.loads(text)
    return written(text, table | ({"format": max(format_, table["format"]), **given} if given else {}))


def written(text: str, table: dict[str, Any]) -> str:
    """Return a manifest's text with the values of a table. Other lines and comments are preserved. `text` must be valid
    TOML.

    A text that cannot be edited in this way is written anew, without comments."""
    try:
        document = tomlkit.parse(text)
        _put(document, tomllib.loads(text), table)
        edited = tomlkit.dumps(document).rstrip("\n") + "\n"
        if tomllib.loads(edited) == table:
            return edited
    except (TOMLKitError, ValueError, RecursionError):
        pass  # e.g. a section in two places, or nested too deeply
    return dump(table)


def _put(place: Container | AbstractTable, before: dict[str, Any], after: dict[str, Any]) -> None:
    for name in before.keys() - after.keys():
        del place[name]
    for name, value in after.items():
        old, inner = before.get(name), place.get(name)
        if isinstance(value, dict) and isinstance(old, dict) and isinstance(inner, AbstractTable):
            _put(inner, old, value)
        elif name not in before or old != value or type(old) is not type(value):
            place[name] = _item(name, value)


def _item(name: str, value: Any) -> Item:
    if isinstance(value, dict):
        section = tomlkit.parse("\n" + dump({name: value}) + "\n").item(name)
        assert isinstance(section, Item)  # a container only if the section were in several places
        return section
    return tomlkit.value(_literal(value))


def _find(key: str) -> tuple[str, str]:
    """Return (section, field) for a key. Section "" means the top of the file. Raises UsageError for an unknown or
    ambiguous key."""
    known = {name: ("", name) for name in TOP}
    for section in SECTIONS:
        for field in fields_of(section):
            known[f"{section}.{field}"] = (section, field)
    if key in known:
        return known[key]
    bare = [name for name in known if name.endswith(f".{key}")]
    if len(bare) == 1:
        return known[bare[0]]
    near = bare or difflib.get_close_matches(key, [*known, *(name.split(".")[-1] for name in known)], 3, 0.5)
    what = f"several keys {key!r}" if bare else f"no key {key!r}"
    fix = f"Did you mean {' or '.join(dict.fromkeys(near))}?" if near else "`peer manifest new` shows the keys."
    raise UsageError(f"--set: the manifest has {what}", fix)


def _value(text: str, section: str, name: str) -> Any:
    """Parse a TOML value. Text that is no TOML value is taken as a string, and so is every value of a text field (a
    name may be `5`)."""
    if not text.isprintable():
        raise UsageError(f"--set {name}: {text!r} holds characters that cannot be printed", "Leave them out.")
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        if _NUMBER.fullmatch(text) and not _is_text(section, name):
            raise UsageError(f"--set {name}={text}: TOML takes no such number", f"Write {_as_toml(text)}.") from None
        return text
    value = table["value"]
    return text if _is_text(section, name) and not isinstance(value, str) else value


def _as_toml(number: str) -> str:
    """Return a number that TOML does not allow, such as .004 or 5., in TOML's form."""
    value = float(number)
    return repr(value) if re.search("[.eE]", number) else str(int(value))


def _is_text(section: str, name: str) -> bool:
    return (fields_of(section)[name].annotation is str) if section else TOP[name] == "str"


def dump(table: dict[str, Any]) -> str:
    """Format a table of scalars and of tables of scalars as TOML, in order. A deeper table is written inline."""
    lines = _lines({name: value for name, value in table.items() if not isinstance(value, dict)})
    for section, fields in table.items():
        if isinstance(fields, dict):
            lines += ["", f"[{_key(section)}]", *_lines(fields)]
    return "\n".join(lines) + "\n"


def _lines(fields: dict[str, Any]) -> list[str]:
    return [f"{_key(name)} = {_literal(value)}" for name, value in fields.items()]


def _key(name: str) -> str:
    return name if _BARE_KEY.fullmatch(name) else _literal(name)


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return hex(value) if value >= 2**63 else repr(value)  # Python limits decimal digits, not hexadecimal ones
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, dict):
        return "{ " + ", ".join(_lines(value)) + " }" if value else "{}"
    if isinstance(value, list):
        rows = [", ".join(map(_literal, value[at : at + ROW])) for at in range(0, len(value), ROW)]
        return f"[\n  {f',{chr(10)}  '.join(rows)},\n]" if len(rows) > 1 else f"[{''.join(rows)}]"
    # JSON's escapes are valid in TOML. DEL is the only character that JSON leaves unescaped and TOML forbids.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
