"""A manifest comes from a stranger: the cost of reading it must be bounded, and each error reported with its place."""

from __future__ import annotations

import base64
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from peer.errors import ManifestError
from peer.identity import Identity
from peer.protocol.messages import WIRE_VERSION
from peer.run.manifest import SignedManifest, default_text, load_signed, parse_manifest, sign_file, signature_path
from peer.run.manifest_errors import LISTED
from peer.run.overrides import SECTIONS, apply_overrides, dump
from peer.run.schema import LONGEST_LINE, MAX_BYTES, SINCE_FORMAT_2, SINCE_FORMAT_3, Manifest

KEY = Identity.from_bytes(
    bytes.fromhex("08011240" + "11" * 32 + "d04ab232742bb4ab3a1368bd4615e4e6d0224ab71a016baf8520a332c9778737")
)
LINES = MAX_BYTES // LONGEST_LINE - 1


def refusal(text: str | bytes) -> str:
    with pytest.raises(ManifestError) as caught:
        parse_manifest(text if isinstance(text, bytes) else text.encode())
    return caught.value.found


@pytest.mark.parametrize(
    "raw",
    [
        b"a = " + b"[" * 200_000,
        b"a" + b".a" * 100_000 + b" = 1",  # unbounded, the parser takes gigabytes for this
        b"a = " + b"1" * 5000,
        b"\n".join(b"a = [" + b"[" * 200 for _ in range(LINES)),
        b"a = " + b"{a = " * 40,
    ],
    ids=["deep arrays", "long key", "long number", "deep arrays in lines", "inline tables"],
)
def test_what_the_parser_cannot_bear_is_refused(raw: bytes) -> None:
    assert "manifest" in refusal(raw)


def test_a_number_beyond_the_interpreters_limit_is_a_finding() -> None:
    refusal("seed = " + "1" * (LONGEST_LINE - 10))


def test_the_largest_manifest_of_nested_keys_is_refused_in_bounded_time() -> None:
    deep = ".a" * 110
    raw = f"[k{deep}]\n".encode() + b"\n".join(f"k{number}{deep} = 1".encode() for number in range(LINES))
    began = time.process_time()
    refusal(raw[:MAX_BYTES].rsplit(b"\n", 1)[0])
    assert time.process_time() - began < 20  # measured: 3 s


def test_many_findings_are_counted_and_not_all_listed() -> None:
    found = refusal("format = 1\n" + "".join(f"k{number} = 1\n" for number in range(LISTED + 17)))
    assert found.count("\n") == LISTED + 1
    assert found.endswith("  and 17 more")


def test_control_characters_of_a_key_never_reach_the_terminal() -> None:
    found = refusal('format = 1\n"\\u001b[2J" = 1\n')
    assert "\x1b" not in found
    assert "\\x1b[2J: unknown key" in found


def test_what_is_wrong_in_a_section_does_not_hide_what_is_wrong_between_sections() -> None:
    text = default_text()
    for old, new in [
        ("context = 64  ", "context = 128 "),
        ("vocab_size = 256", "vocab_size = 100"),
        ("lr = 4e-3", 'lr = "fast"'),
        ("# outer_momentum = 0.0", "outer_momentum = 0.9"),
        ("# outer_lr = 1.0", "fragments = 2 #"),
    ]:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    found = refusal(text + "\n[wire]\nmin = 3\nmax = 2\n\n[orphan]\n")
    where = {words: number for number, line in enumerate(text.split("\n"), 1) if (words := line.split(" =")[0])}
    for key in ("model.vocab_size", "train.context", "optimizer.lr", "sync.fragments", "sync.outer_momentum"):
        assert f"line {where[key.split('.')[1]]}, {key}: " in found
    assert "wire.min: 3 is more than wire.max (2)" in found
    assert "orphan: unknown key" in found
    numbers = [int(line.split()[1].rstrip(",")) for line in found.split("\n")[1:]]
    assert len(numbers) == 7
    assert numbers == sorted(numbers)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "format: Field required"),
        ("format = 1\n[model]\nhidden_size = 65\nnum_key_value_heads = 3\n", "line 2, model: hidden_size must be"),
        ("format = 1\n[model]\nnum_key_value_heads = 3\n", "multiple of num_key_value_heads"),
        ("format = 1\nsync = 3\n", "line 2, sync:"),
        ("format = 1\nsync.sync_evry = 3\n", "line 2, sync.sync_evry: unknown key"),
        ("format = 1\n[train.optimizer]\nlr = 1\n", "line 2, train.optimizer: unknown key"),
        (
            "format = 1\n[wire]\nmin = 8\nmax = 9\n",
            f"line 3, wire.min: this program speaks wire version {WIRE_VERSION}",
        ),
        ("format = 1\n[limits]\nmax_fragment_bytes = 1024\n", "line 3, limits.max_fragment_bytes: a payload"),
        ("format = 1\n[optimizer]\nbeta1 = 1.0\n", "line 3, optimizer.beta1"),
        ("format = 1\n[optimizer]\nlr = nan\n", "line 3, optimizer.lr"),
        ("format = 1\n[sync]\nsync_every = 0.001\n", "line 3, sync.sync_every"),
        ("format = 1\n[sync]\nsync_every = inf\n", "line 3, sync.sync_every"),
        ("format = 1\n[train]\nbatch = true\n", "line 3, train.batch"),
        ("format = '1'\n", "line 1, format"),
        ("format = true\n", "line 1, format"),
    ],
)
def test_findings_name_their_place(text: str, words: str) -> None:
    assert words in refusal(text)


def test_the_newer_format_is_told_even_where_all_else_is_unknown() -> None:
    assert "made by a newer peer" in refusal("format = 99\nmodel = 3\n")


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=200))
def test_random_bytes_are_never_a_manifest_and_never_crash(raw: bytes) -> None:
    refusal(raw)


SCALARS = st.one_of(st.integers(), st.floats(), st.booleans(), st.text(max_size=20))


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([f"{name}.{field}" for name, kind in SECTIONS.items() for field in kind.model_fields]), SCALARS)
def test_any_value_for_any_key_is_a_manifest_or_a_finding_that_names_its_section(key: str, value: object) -> None:
    section, field = key.split(".")
    found = ""
    try:
        parse_manifest(dump({"format": 1, section: {field: value}}).encode())
    except ManifestError as error:
        found = error.found
    # What one key breaks may show at the key of another section that it no longer fits to.
    assert not found or any(f"{name}." in found or f"{name}:" in found for name in (section, "limits", "train"))


def test_golden_signature_and_its_file(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(f'format = 1\noperator = "{KEY.peer_id}"\n'.encode())
    signed = sign_file(path, KEY)
    assert signature_path(path).read_text() == base64.b64encode(signed.signature).decode() + "\n"
    assert signed.signature.hex() == (
        "8cbf6b0c0e464675f22cc50186aba278b13dc3668ef3fdfbdbe35edca94c2510"
        "53b8d082347133fd012713fb1a2508687053a5e6fa772a99d5401f243510260b"
    )
    assert load_signed(path) == signed


@pytest.mark.parametrize("signature", [b"", b"x" * 64, b"x" * 10_000])
def test_a_signature_of_any_bytes_is_refused(signature: bytes) -> None:
    with pytest.raises(ManifestError, match="changed after it was signed"):
        SignedManifest(default_text(KEY.peer_id).encode(), signature).verify()


def test_a_signature_made_for_another_purpose_is_worth_nothing() -> None:
    raw = default_text(KEY.peer_id).encode()
    with pytest.raises(ManifestError):
        SignedManifest(raw, KEY.sign(b"peer hello v1", raw)).verify()


def test_a_manifest_without_operator_does_not_verify() -> None:
    with pytest.raises(ManifestError, match="names no operator"):
        SignedManifest(default_text().encode(), b"x" * 64).verify()


def test_bytes_that_are_no_text_are_not_mended_silently(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_bytes(default_text(KEY.peer_id).encode() + b"# \xff\n")
    with pytest.raises(ManifestError, match="not TOML"):
        sign_file(path, KEY)


def test_the_default_names_every_key_but_those_of_fixed_sections_and_of_presets() -> None:
    named = apply_overrides(default_text(), [])
    for section in ("model", "train", "optimizer", "limits"):
        for field in SECTIONS[section].model_fields:
            since = SINCE_FORMAT_2.get(section, {}).keys() | SINCE_FORMAT_3.get(section, {}).keys()
            # The default file leaves out the keys of later formats: they are optional, and have a default of their own.
            newer = field in since
            if field not in ("rope_theta", "rms_norm_eps") and not (newer and field != "kind"):
                assert f"\n{field} = " in named, field
    assert set(SECTIONS) | {"format", "name", "seed", "operator", "start", "init"} == set(Manifest.model_fields)
