from __future__ import annotations

import codecs
import subprocess
from pathlib import Path

import pytest

from peer.errors import ManifestError, UsageError
from peer.identity import Identity
from peer.run.manifest import (
    MAX_BYTES,
    SignedManifest,
    default_text,
    load_signed,
    parse_manifest,
    read_text,
    sign_file,
    sign_text,
    signature_path,
    write_new,
)
from peer.run.overrides import apply_overrides, dump
from peer.run.resolve import resolve
from peer.run.schema import FORMAT, overridden

KEY = Identity.from_bytes(
    bytes.fromhex("08011240" + "11" * 32 + "d04ab232742bb4ab3a1368bd4615e4e6d0224ab71a016baf8520a332c9778737")
)


def test_the_default_checks_and_is_signed(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    signed = write_new(path, KEY)
    assert load_signed(path).run_id == signed.run_id
    assert signed.manifest.operator == KEY.peer_id
    assert signed.manifest.sync.clock == "seconds"


def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path) -> None:
    """Some editors write one. Run id and signature still cover the file's exact bytes."""
    path = tmp_path / "run.toml"
    write_new(path, KEY)
    path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    signed = sign_file(path, KEY)
    assert load_signed(path).run_id == signed.run_id
    assert signed.raw == path.read_bytes()
    assert read_text(path).startswith("#")


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text("mine")
    with pytest.raises(ManifestError, match="exists"):
        write_new(path, KEY)
    assert path.read_text() == "mine"


def test_golden_run_id_and_signature() -> None:
    raw = f'format = 1\noperator = "{KEY.peer_id}"\n'.encode()
    signed = SignedManifest(raw, KEY.sign(b"peer manifest v1", raw))
    signed.verify()
    assert KEY.peer_id == "12D3KooWPqT2nMDSiXUSx5D7fasaxhxKigVhcqfkKqrLghCq9jxz"
    assert signed.run_id.hex() == "67b8ed088ffcf54329e0168e9e274a6414ac0c16e398fb2fd9bb1bdbc94c4e1a"


@pytest.mark.parametrize("place", [0, 40, -2])
def test_a_changed_manifest_is_noticed(tmp_path: Path, place: int) -> None:
    path = tmp_path / "run.toml"
    write_new(path, KEY)
    raw = bytearray(path.read_bytes())
    raw[place] = ord("#") if raw[place] != ord("#") else ord(" ")
    path.write_bytes(bytes(raw))
    with pytest.raises(ManifestError):
        load_signed(path)


def test_a_foreign_key_cannot_sign(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    write_new(path, KEY)
    with pytest.raises(ManifestError, match="as operator"):
        sign_file(path, Identity.generate())
    forged = SignedManifest(path.read_bytes(), Identity.generate().sign(b"peer manifest v1", path.read_bytes()))
    with pytest.raises(ManifestError, match="changed after it was signed"):
        forged.verify()


@pytest.mark.processes
def test_line_ends_of_windows_are_told_with_a_command_that_mends_them(tmp_path: Path) -> None:
    """git's core.autocrlf changes both files at checkout."""
    path = tmp_path / "run.toml"
    write_new(path, KEY)
    for one in (path, signature_path(path)):
        one.write_bytes(one.read_bytes().replace(b"\n", b"\r\n"))
    with pytest.raises(ManifestError, match=r"line ends of .* were changed") as refused:
        load_signed(path)
    subprocess.run(["sh", "-c", refused.value.fix.removeprefix("Change them back: ")], check=True)
    load_signed(path)


def test_an_unsigned_manifest_says_how_to_sign(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    write_new(path, KEY)
    signature_path(path).unlink()
    with pytest.raises(ManifestError) as caught:
        load_signed(path)
    assert f"peer manifest sign {path}" in caught.value.fix


def test_a_newer_format_is_refused_before_anything_else() -> None:
    with pytest.raises(ManifestError, match=f"format {FORMAT + 1}") as caught:
        parse_manifest(f'format = {FORMAT + 1}\nunheard = "of"\n[model]\nkind = "later"\n'.encode())
    assert "unheard" not in caught.value.found


@pytest.mark.parametrize(
    ("text", "codec"),
    [
        ("format = 1\n", "bf16"),
        ("format = 2\n[sync]\nsync_every = 5\n", "bf16"),
        ("format = 1\n[sync]\npreset = 'noloco'\nschedule = 'streaming'\n", "bf16"),
        ("format = 1\n[sync]\ncodec = 'modulo6'\n", "modulo6"),
        ("format = 1\n[sync]\npreset = 'streaming-diloco'\n", "int4"),
        ("format = 3\n", "modulo7"),
    ],
)
def test_an_older_manifest_keeps_the_codec_that_noloco_had(text: str, codec: str) -> None:
    assert resolve(parse_manifest(text.encode()).sync).codec == codec


def test_an_older_manifest_keeps_the_momentum_that_eager_had() -> None:
    def momentum(text: str) -> float:
        return resolve(parse_manifest(text.encode()).sync).outer_momentum

    chosen = "[sync]\npreset = 'eager'\n"
    assert momentum(f"format = 5\n{chosen}") == 0.5
    assert momentum(f"format = 5\n{chosen}outer_momentum = 0.25\n") == 0.25
    assert momentum(f"format = 6\n{chosen}") == 0.0
    assert momentum(overridden(default_text(), ["sync.preset=eager"])) == 0.0
    assert momentum(overridden(f"format = 4\n{chosen}", ["seed=3"])) == 0.5, "what a run is does not change under it"
    named = overridden(default_text(), ["sync.preset=eager", "sync.outer_momentum=0.5"])
    assert parse_manifest(named.encode()).format == 4, "older programs may take part"


def test_every_finding_comes_at_once_with_its_line() -> None:
    text = 'format = 1\nnonsense = 1\n[optimizer]\nlr = -1\n[model]\nkind = "gpt9"\nhidden_size = 65\n'
    with pytest.raises(ManifestError) as caught:
        parse_manifest(text.encode())
    for finding in ("line 2, nonsense: unknown key", "line 4, optimizer.lr", "line 6, model.kind"):
        assert finding in caught.value.found


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("train.context=65", "max_position_embeddings"),
        ("model.vocab_size=200", "vocab_size"),
        ("sync.sync_every=1.5", "whole number"),
        ("operator=nobody", "peer id"),
        ("model.num_attention_heads=5", "hidden_size must be"),
        ("train.batch=0", "train.batch"),
        ("limits.max_fragment_bytes=2000000000000000", "max_fragment_bytes"),
    ],
)
def test_combinations_that_cannot_be(change: str, words: str) -> None:
    text = apply_overrides(default_text(), ["sync.clock=steps", change])
    with pytest.raises(ManifestError, match=words):
        parse_manifest(text.encode())


@pytest.mark.parametrize("raw", [b"\xff\xfe", b"= 1", b"", b"x" * (MAX_BYTES + 1), b"format = 'one'"])
def test_what_is_no_manifest_is_a_manifest_error(raw: bytes) -> None:
    with pytest.raises(ManifestError):
        parse_manifest(raw)


def test_overrides_reach_their_section_and_survive_the_round_trip(tmp_path: Path) -> None:
    text = apply_overrides(default_text(), ["sync_every=20", "sync.clock=steps", "name=other", "lr=1e-3", "seed=7"])
    manifest = parse_manifest(text.encode())
    assert (manifest.sync.sync_every, manifest.sync.clock) == (20, "steps")
    assert (manifest.name, manifest.optimizer.lr, manifest.seed) == ("other", 1e-3, 7)
    assert apply_overrides(text, []) == text
    signed = sign_text(text, KEY, tmp_path / "run.toml")
    assert signed.manifest.operator == KEY.peer_id


@pytest.mark.parametrize("setting", ["sync_evry=3", "kind=x", "no equals", "model.nothing=1"])
def test_an_unknown_or_ambiguous_key_is_a_usage_error(setting: str) -> None:
    with pytest.raises(UsageError):
        apply_overrides(default_text(), [setting])


def test_near_misses_are_named() -> None:
    with pytest.raises(UsageError) as caught:
        apply_overrides(default_text(), ["sync_evry=3"])
    assert "sync_every" in caught.value.fix


def test_strings_are_quoted() -> None:
    assert (
        dump({"name": 'a "b"\n', "yes": True, "t": {"x": 1.5}}) == 'name = "a \\"b\\"\\n"\nyes = true\n\n[t]\nx = 1.5\n'
    )
