from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from peer.errors import ManifestError, UsageError
from peer.identity import Identity
from peer.run.manifest import default_text, derive, load_signed, parse_manifest, write_new
from peer.run.overrides import TOP, apply_overrides, dump
from peer.run.schema import Manifest

VALUES = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.text(st.characters(codec="utf-8"))
)
KEYS = st.text(st.characters(codec="utf-8"), max_size=8)


@given(st.dictionaries(KEYS, st.one_of(VALUES, st.dictionaries(KEYS, VALUES, max_size=3)), max_size=4))
def test_what_is_written_reads_back_the_same(table: dict[str, object]) -> None:
    assert tomllib.loads(dump(table)) == table


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("name=5", "5"),
        ("name=2026-11-21", "2026-11-21"),
        ('name="quoted"', "quoted"),
        ("name=a b", "a b"),
        ("data.digest=" + "1" * 64, "1" * 64),
        ("preset=none", "none"),
        ("sync.sync_every=15", 15),
        ("lr=2e-3", 2e-3),
        (" lr = 2e-3 ", 2e-3),
    ],
)
def test_values_are_toml_and_else_text_and_a_field_of_text_takes_any(setting: str, value: object) -> None:
    key = setting.partition("=")[0].strip()
    text = apply_overrides(default_text(), [setting])
    table = tomllib.loads(text)
    parse_manifest(text.encode())
    flat = {**table, **{f"{s}.{k}": v for s in table if isinstance(table[s], dict) for k, v in table[s].items()}}
    assert next(flat[name] for name in flat if name == key or name.endswith(f".{key}")) == value


def test_the_types_of_the_top_are_those_of_the_manifest() -> None:
    top = {name: kind.annotation for name, kind in Manifest.model_fields.items() if name in TOP}
    assert {name: kind.__name__ for name, kind in top.items() if kind} == TOP


def test_a_line_break_in_a_value_cannot_add_keys() -> None:
    with pytest.raises(UsageError):
        apply_overrides(default_text(), ["seed=1\noperator='x'"])
    with pytest.raises(UsageError):
        apply_overrides(default_text(), ["name=\udcff"])


def test_a_value_in_the_place_of_a_section_is_named() -> None:
    with pytest.raises(ManifestError, match="sync is not a section"):
        apply_overrides("format = 1\nsync = 3\n", ["sync_every=5"])


def test_ambiguous_keys_are_listed() -> None:
    with pytest.raises(UsageError, match="several keys 'kind'") as caught:
        apply_overrides(default_text(), ["kind=x"])
    assert "model.kind" in caught.value.fix
    assert "data.kind" in caught.value.fix


def test_derive_names_the_lines_of_the_file_and_checks_the_result() -> None:
    with pytest.raises(ManifestError, match=r"line 4, model\.hidden_size"):
        derive("format = 1\n# a comment that an override loses\n[model]\nhidden_size = 1\n", ["seed=5"])
    with pytest.raises(ManifestError, match=r"optimizer\.lr"):
        derive(default_text(), ["lr=-1"])
    assert parse_manifest(derive(default_text(), ["lr=1e-4"]).encode()).optimizer.lr == 1e-4


def test_new_with_settings_writes_a_signed_file_or_nothing(tmp_path: Path) -> None:
    key, path = Identity.generate(), tmp_path / "run.toml"
    with pytest.raises(ManifestError, match="diverges"):
        write_new(path, key, ["outer_momentum=0.9"])
    with pytest.raises(UsageError):
        write_new(path, key, ["nothing=1"])
    assert list(tmp_path.iterdir()) == []
    assert write_new(path, key, ["name=mine"]).manifest.name == "mine"
    assert load_signed(path).manifest.operator == key.peer_id
    assert sorted(file.name for file in tmp_path.iterdir()) == ["run.toml", "run.toml.sig"]


def test_a_place_that_cannot_be_written_is_a_manifest_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "absent" / "run.toml", tmp_path / "file" / "run.toml"):
        with pytest.raises(ManifestError, match="cannot write"):
            write_new(path, Identity.generate())
