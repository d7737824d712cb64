from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tomlkit.exceptions import TOMLKitError

from peer.errors import ManifestError, UsageError
from peer.identity import Identity
from peer.run.manifest import default_text, derive, load_signed, parse_manifest, write_new
from peer.run.overrides import TOP, apply_overrides, dump
from peer.run.schema import Manifest
from peer.run.sync.vocabulary import unused_vocabulary

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


@pytest.mark.parametrize(
    ("number", "meant"),
    [(".004", "0.004"), ("-.5", "-0.5"), ("4.", "4.0"), ("007", "7"), ("+.1e-3", "0.0001"), ("01.5", "1.5")],
)
def test_a_number_that_toml_does_not_take_is_written_as_it_does(number: str, meant: str) -> None:
    with pytest.raises(UsageError) as caught:
        apply_overrides(default_text(), [f"optimizer.lr={number}"])
    assert f"--set lr={number}" in caught.value.found
    assert caught.value.fix == f"Write {meant}."
    assert tomllib.loads(apply_overrides(default_text(), [f"name={number}"]))["name"] == number


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


def test_comments_and_other_lines_stay() -> None:
    text = default_text("x")
    edited = apply_overrides(text, ["sync_every=300", "outer_lr=0.5", "wire.max=2", "start=17.5"])
    before, after = text.splitlines(), edited.splitlines()
    assert [line for line in before if line not in after] == [
        "start = 0                 # of round 0 in seconds since the epoch; 0: when the first peer is ready",
        "sync_every = 10           # seconds between two exchanges; a run over the internet wants minutes",
    ]
    added = [line for line in after if line not in before]
    assert [line.partition("#")[0].strip() for line in added] == [
        "start = 17.5",
        "sync_every = 300",
        "outer_lr = 0.5",
        "[wire]",
        "max = 2",
    ]
    assert added[1].endswith("# seconds between two exchanges; a run over the internet wants minutes")


@pytest.mark.parametrize(
    "text",
    ["format = 1\n[model]\nvocab_size = 9\n", "format = 1\nsync.clock = 'steps'\n", "format = 1\nsync = {seed = 1}\n"],
    ids=["section", "dotted", "inline"],
)
def test_any_form_of_a_table_is_edited(text: str) -> None:
    table = tomllib.loads(text)
    expected = table | {"seed": 3, "sync": {**table.get("sync", {}), "sync_every": 7}}
    assert tomllib.loads(apply_overrides(text, ["seed=3", "sync_every=7"])) == expected


def test_what_cannot_be_edited_is_written_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(text: str) -> None:
        raise TOMLKitError("in two places")

    monkeypatch.setattr("peer.run.overrides.tomlkit.parse", fails)
    text = apply_overrides(default_text(), ["sync_every=300"])
    assert tomllib.loads(text)["sync"]["sync_every"] == 300
    assert "#" not in text


def test_a_new_manifest_with_settings_keeps_its_comments(tmp_path: Path) -> None:
    write_new(tmp_path / "run.toml", Identity.generate(), ["sync_every=300"])
    text = (tmp_path / "run.toml").read_text()
    assert text.count("#") == default_text().count("#")


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["hidden_size=65"], r"with hidden_size=65:\n  model: .*: 65 is not so with 4 heads, 64 or 72 would be$"),
        (["hidden_size=9", "num_attention_heads=8"], r": 9 is not so with 8 heads, 16 would be"),
        (["num_key_value_heads=3"], r"num_attention_heads \(4\) must be a multiple of num_key_value_heads \(3\)"),
        (["train.context=65"], r"\n  train.context: 65 is more than model.max_position_embeddings \(64\)"),
        (["model.vocab_size=100"], r"\n  model.vocab_size: byte tokens need at least 256, and this is 100"),
        (["optimizer.schedule=wsd", "warmup_fraction=0.9"], r"warmup_fraction \(0.9\) and decay_fraction \(0.2\)"),
    ],
)
def test_an_error_of_settings_names_both_numbers_and_no_line(settings: list[str], told: str) -> None:
    with pytest.raises(ManifestError, match=told) as caught:
        derive(default_text(), settings)
    assert "line " not in caught.value.found
    assert "line" not in caught.value.fix


def test_an_error_of_a_file_names_the_file_and_its_line(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(default_text().replace("hidden_size = 64", "hidden_size = 4"))
    with pytest.raises(ManifestError, match=r"run\.toml does not check:\n  line 13, model.hidden_size: ") as caught:
        load_signed(file)
    assert default_text().splitlines()[12].startswith("hidden_size = 64")
    assert caught.value.fix == "Mend the lines named."


@pytest.mark.parametrize(
    ("wrong", "shown"),
    [
        ("lr = .004", "Invalid value (at line 2, column 6): lr = .004"),
        ("hidden_size 64", "line 2, column 13): hidden_size 64"),
        ("\x1b[2J" + "x" * 200, "(at line 2, column 1): ?[2J" + "x" * 76 + "\n"),
    ],
)
def test_a_file_that_is_not_toml_is_named_with_the_line_and_its_text(wrong: str, shown: str, tmp_path: Path) -> None:
    file = tmp_path / "own.toml"
    file.write_text(f"format = 1\n{wrong}\nseed = 1\n")
    with pytest.raises(ManifestError, match=r"own\.toml is not TOML: ") as caught:
        load_signed(file)
    assert shown in f"{caught.value.found}\n"


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (["model.vocab_size=50257"], "bytes are 256 tokens, and this is 50,257. The other 50,001 are never met"),
        (["model.vocab_size=258"], ""),
        ([], ""),
    ],
)
def test_a_vocabulary_that_the_tokenizer_cannot_use_is_told(settings: list[str], told: str) -> None:
    manifest = parse_manifest(derive(default_text(), settings).encode())
    why = unused_vocabulary(manifest.model, manifest.tokenizer)
    assert (why == "") if not told else why.startswith(told)
