from __future__ import annotations

import tomllib

import pytest

from peer.errors import ManifestError
from peer.protocol.model.layout import TensorSpec
from peer.run import schema
from peer.run.files.layout_file import MOST_LAYOUT_BYTES, format_layout, parse_layout
from peer.run.manifest import default_text
from peer.run.model_layout import layout_for, tensors_of
from peer.run.overrides import apply_overrides, dump, with_sections
from peer.run.resolve import resolve
from peer.run.schema import Manifest, check_layout, overridden, parse_manifest
from peer.run.sections import CustomSection, LlamaSection, TransformersSection

DIGEST = "ab" * 32
OLDER = default_text().replace("format = 4", "format = 1").replace('"gossip" ', '"noloco" ')
"""A manifest of format 1, which an older program can read."""
REF = f'{{ digest = "{DIGEST}", size = 700 }}'
FOREIGN = f"""format = 2
[model]
kind = "transformers"
parameters = 1000
config = {REF}
layout = {REF}
[tokenizer]
kind = "file"
vocab_size = 500
end_token = 499
file = {REF}
[data]
kind = "tokens"
index = {REF}
document_mask = true
"""
TENSORS = [TensorSpec("wte.weight", (50, 10)), TensorSpec("h.0.w", (20, 20)), TensorSpec("h.1.w", (10, 10))]


def refused(text: str) -> str:
    with pytest.raises(ManifestError) as caught:
        parse_manifest(text.encode())
    return caught.value.found


def test_a_foreign_model_with_tokens_of_the_swarm_parses() -> None:
    manifest = parse_manifest(FOREIGN.encode())
    assert isinstance(manifest.model, TransformersSection)
    assert manifest.model.config.digest == DIGEST
    assert manifest.tokenizer.file == manifest.data.index == manifest.model.layout
    assert manifest.data.document_mask


def test_settings_keep_the_files_of_a_manifest() -> None:
    text = apply_overrides(FOREIGN, ["train.batch=2", "model.parameters=2000"])
    manifest = parse_manifest(text.encode())
    assert (manifest.model.parameters, manifest.train.batch) == (2000, 2)
    assert manifest.data == parse_manifest(FOREIGN.encode()).data
    assert apply_overrides(text, []) == text
    assert dump({"a": {"b": {}}}) == "\n[a]\nb = {}\n"


def test_an_older_program_would_not_understand_the_new_kinds_so_format_1_refuses_them() -> None:
    found = refused(FOREIGN.replace("format = 2", "format = 1") + "[limits]\nmax_parameters = 5000\n")
    for key in ("model.kind", "tokenizer.kind", "data.kind", "limits.max_parameters"):
        assert f"{key}: needs format = 2" in found


def test_a_method_that_an_older_program_does_not_know_needs_a_later_format_and_gets_it_when_it_is_set() -> None:
    for key, value in (("preset", "gasloc"), ("preset", "snoo"), ("rule", "gasloc")):
        found = refused(f'format = 2\n[sync]\n{key} = "{value}"\n')
        assert f"sync.{key}: needs format = 3" in found
        made = overridden(OLDER, [f"sync.{key}={value}"])
        assert parse_manifest(made.encode()).format == 3
    assert parse_manifest(overridden(OLDER, ["optimizer.schedule=wsd"]).encode()).format == 2
    file = {"tokenizer": {"kind": "file", "vocab_size": 256, "end_token": 0}}
    for text, needed in ((made, 3), (OLDER, 2)):
        assert tomllib.loads(with_sections(text, file))["format"] == needed
    assert tomllib.loads(overridden(with_sections(OLDER, file), ["preset=gasloc"]))["format"] == 3
    assert "needs format = 3" in refused(overridden(OLDER, ["preset=gasloc", "format=1"]))
    assert parse_manifest(overridden(OLDER, ["preset=diloco"]).encode()).format == 1


@pytest.mark.parametrize(
    ("key", "value"), [("weights", "equal"), ("weights", "tokens"), ("mean", "rda"), ("mean", "weighted")]
)
def test_a_manifest_that_names_how_the_mean_is_made_has_format_3(key: str, value: str) -> None:
    text = f'format = 2\n[sync]\npreset = "diloco"\n{key} = "{value}"\n'
    assert f"sync.{key}: needs format = 3" in refused(text)
    assert parse_manifest(overridden(OLDER, ["preset=diloco", f"{key}={value}"]).encode()).format == 3


@pytest.mark.parametrize(
    "value", ['preset = "sparseloco"', 'preset = "diloco"\ncodec = "topk"\nresult_codec = "sparse"']
)
def test_a_manifest_with_a_sparse_result_has_format_3(value: str) -> None:
    key = value.split()[-3]
    for low in (1, 2):
        assert f"sync.{key}: needs format = 3" in refused(f"format = {low}\n[sync]\n{value}\n")
    assert parse_manifest(f"format = 3\n[sync]\n{value}\n".encode()).sync.preset


def test_setting_a_newer_value_raises_the_format() -> None:
    text = "format = 1\n[sync]\nsync_every = 20.0\n"
    assert parse_manifest(overridden(text, ["preset=sparseloco"]).encode()).format == 3
    assert parse_manifest(overridden(text, ["preset=diloco"]).encode()).format == 1
    assert "needs format = 3" in refused(overridden(text, ["preset=sparseloco", "format=2"]))


def test_an_optimizer_that_an_older_program_does_not_know_needs_a_later_format_and_gets_it_when_it_is_set() -> None:
    for key, value in (("kind", '"muon"'), ("momentum", "0.9")):
        assert f"optimizer.{key}: needs format = 3" in refused(f"format = 2\n[optimizer]\n{key} = {value}\n")
    made = overridden(OLDER, ["optimizer.kind=muon", "optimizer.momentum=0.9"])
    assert parse_manifest(made.encode()).format == 3


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (f"config = {REF}", f"config = {REF.replace('700', '2000000')}", "config has 2,000,000 bytes"),
        (f"layout = {REF}", 'layout = { digest = "../../etc/passwd", size = 1 }', "model.layout.digest"),
        (f"layout = {REF}\n[", "[", "line 2, model.layout: Field required"),
        ("parameters = 1000", "parameters = 0", "line 4, model.parameters"),
        ("parameters = 1000", "parameters = 1000\nhidden_size = 64", "line 5, model.hidden_size: unknown key"),
        (
            'kind = "transformers"',
            'kind = "keras"',
            "line 3, model.kind: Input should be 'llama' or 'transformers' or 'custom'",
        ),
        ("end_token = 499", "end_token = 500", "end_token 500 is not below vocab_size"),
        ("end_token = 499\n", "", "needs vocab_size, end_token and file"),
        (f"file = {REF}", f"file = {REF.replace('700', '1073741824')}", "file has 1,073,741,824 bytes"),
        ('kind = "tokens"', 'kind = "text"', 'kind "text" has no index; document_mask needs kind "tokens"'),
        (f"index = {REF}\n", "", 'kind "tokens" needs an index'),
        (
            f'kind = "file"\nvocab_size = 500\nend_token = 499\nfile = {REF}',
            'kind = "bytes"',
            'kind "tokens" needs tokenizer.kind "file"',
        ),
        ("document_mask = true", "[limits]\nmax_parameters = 999", "limits.max_parameters: the model has 1,000"),
    ],
)
def test_what_does_not_fit_is_named(old: str, new: str, words: str) -> None:
    assert old in FOREIGN
    assert words in refused(FOREIGN.replace(old, new))


def test_a_tokenizer_larger_than_the_built_in_models_vocabulary_is_named() -> None:
    text = f'format = 2\n[tokenizer]\nkind = "file"\nvocab_size = 300\nend_token = 0\nfile = {REF}\n'
    assert "model.vocab_size: the tokenizer needs at least 300" in refused(text)
    assert parse_manifest((text + "[model]\nvocab_size = 300\n").encode()).tokenizer.vocab_size == 300


def test_the_cut_and_the_payload_of_a_foreign_model_are_checked_with_its_layout() -> None:
    def manifest(*settings: str) -> Manifest:
        return parse_manifest(apply_overrides(FOREIGN, settings).encode())

    check_layout(manifest(), TENSORS)
    check_layout(manifest("sync.preset=streaming-noloco"), TENSORS)
    with pytest.raises(ManifestError, match=r"sync\.fragments: the model has 2 blocks"):
        check_layout(manifest("sync.preset=streaming-noloco", "fragments=4"), TENSORS)
    with pytest.raises(ManifestError, match=r"max_fragment_bytes: a payload of this model has 2000 bytes"):
        check_layout(manifest("max_fragment_bytes=1024"), TENSORS)


def test_a_radial_mean_needs_tensors_in_blocks() -> None:
    outside = [TensorSpec(tensor.name.replace(".", "_"), tensor.shape) for tensor in TENSORS]
    radial = parse_manifest(overridden(FOREIGN, ["sync.preset=diloco", "mean=rda"]).encode())
    check_layout(radial, TENSORS)
    with pytest.raises(ManifestError, match=r"sync\.mean: rda is for the tensors of blocks"):
        check_layout(radial, outside)


def test_a_foreign_models_tensors_are_cut_as_the_built_in_ones() -> None:
    manifest = parse_manifest(apply_overrides(FOREIGN, ["sync.preset=streaming-noloco"]).encode())
    layout = layout_for(manifest.model, resolve(manifest.sync), TENSORS)
    assert layout.fragments == ((0, 2), (2, 3))
    assert layout.elements == 1000


def test_a_layout_is_written_and_read_again() -> None:
    tensors = [*tensors_of(LlamaSection()), TensorSpec("scale", ())]
    raw = format_layout(tensors)
    assert parse_layout(raw, LlamaSection().parameters + 1) == tensors
    assert raw.count(b"\n") == len(tensors) + 2


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"{", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"{}", "no list"),
        (b"[]", "no list"),
        (b'[["a", [10]], ["a", [10]]]', "twice"),
        (b'[["a", [10]]]', "10 elements, but model.parameters is 20"),
        (b'[["a", [21]]]', "a shape that 20 parameters cannot have"),
        (b'[["a", [-4, -5]]]', "cannot have"),
        (b'[["a", [20, true]]]', "cannot have"),
        (b'[["a", [4.0, 5]]]', "cannot have"),
        (b'[["a", [20, 20, 20, 20, 20, 20, 20, 20]]]', "cannot have"),
        (b'[["a", [1, 1, 1, 1, 1, 1, 1, 1, 20]]]', "cannot have"),
        (b'[["", [20]]]', "entry 0"),
        (b'[["\\u0007", [20]]]', "entry 0"),
        (b'[["a", [20], 1]]', "entry 0"),
        (b'["a"]', "entry 0"),
        (b" " * (MOST_LAYOUT_BYTES + 1), "more than"),
    ],
)
def test_a_layout_that_is_none_is_refused(raw: bytes, words: str) -> None:
    with pytest.raises(ManifestError, match=words):
        parse_layout(raw, 20)


CUSTOM = f"""format = 7
init = "{DIGEST}"
[model]
kind = "custom"
parameters = 1000
layout = {REF}
title = "CNN (digits)"
[data]
kind = "own"
"""


def test_a_custom_model_parses_and_its_layout_is_checked() -> None:
    manifest = parse_manifest(CUSTOM.encode())
    assert isinstance(manifest.model, CustomSection)
    assert (manifest.model.parameters, manifest.model.title) == (1000, "CNN (digits)")
    check_layout(manifest, TENSORS)
    assert layout_for(manifest.model, resolve(manifest.sync), TENSORS).elements == 1000
    edited = parse_manifest(apply_overrides(CUSTOM, ["title=VAE", "train.total_rounds=9"]).encode())
    assert isinstance(edited.model, CustomSection)
    assert (edited.model.title, edited.model.layout, edited.rounds) == ("VAE", manifest.model.layout, 9)


def test_an_older_program_refuses_a_custom_model_by_its_format(monkeypatch: pytest.MonkeyPatch) -> None:
    for low in (1, 4, 6):
        older = refused(CUSTOM.replace("format = 7", f"format = {low}"))
        for key in ("model.kind", "model.title", "data.kind"):
            assert f"{key}: needs format = 7" in older
    assert parse_manifest(overridden(CUSTOM.replace("format = 7", "format = 4"), ["seed=1"]).encode()).format == 7
    for known in (4, 6):
        monkeypatch.setattr(schema, "FORMAT", known)
        assert f"it has format 7, this program knows up to {known}" in refused(CUSTOM)


def test_no_other_manifest_gets_the_format_of_custom_models() -> None:
    assert parse_manifest(overridden(OLDER, ["sync.preset=eager"]).encode()).format == 6
    assert parse_manifest(overridden(default_text(), ["seed=1"]).encode()).format == 4


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (f'init = "{DIGEST}"\n', "", 'init: a model of kind "custom" begins from weights that init names'),
        ('kind = "own"', 'kind = "stdlib"', 'data.kind: a model of kind "custom" needs "own"'),
        ('kind = "own"', f'kind = "own"\ndigest = "{DIGEST}"', 'kind "own" has no digest'),
        ('title = "CNN (digits)"', f'title = "{"x" * 65}"', "model.title"),
        ('title = "CNN (digits)"', 'title = "a\\u0007"', "model.title"),
        ('title = "CNN (digits)"', "vocab_size = 5", "model.vocab_size: unknown key"),
        (f"layout = {REF}", f"layout = {REF.replace('700', '9000000')}", "layout has 9,000,000 bytes"),
        (f'kind = "custom"\nparameters = 1000\nlayout = {REF}\ntitle = "CNN (digits)"', "", "data.kind"),
        ('kind = "own"', 'kind = "own"\n[limits]\nmax_parameters = 999', "limits.max_parameters: the model has 1,000"),
    ],
)
def test_what_does_not_fit_a_custom_model_is_named(old: str, new: str, words: str) -> None:
    assert old in CUSTOM
    assert words in refused(CUSTOM.replace(old, new))


def test_an_edited_manifest_reads_like_a_written_one() -> None:
    """Sections are separated by blank lines, and no comment describes a replaced value."""
    ref = {"digest": DIGEST, "size": 700}
    given = {
        "model": {"kind": "transformers", "parameters": 1000, "config": ref, "layout": ref},
        "data": {"kind": "tokens", "index": ref},
        "tokenizer": {"kind": "file", "vocab_size": 500, "end_token": 499, "file": ref},
        "admission": {"kind": "invited"},
    }
    lines = with_sections(default_text(), given).splitlines()
    headers = [number for number, line in enumerate(lines) if line.startswith("[")]
    assert [lines[number - 1] for number in headers] == [""] * len(headers)
    assert lines[-1] == 'kind = "invited"'
    for section, value in {"[model]": "transformers", "[data]": "tokens"}.items():
        line = lines[lines.index(section) + 1]
        assert line.startswith(f'kind = "{value}"')
        assert f'"{value}": ' in line.partition("#")[2]
