from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest

from peer.errors import ManifestError
from peer.methods.registry import PRESETS
from peer.run.model_layout import layout_for
from peer.run.resolve import resolve, sources
from peer.run.sections import LlamaSection, SyncSection


def sync(**options: Any) -> SyncSection:
    return SyncSection.model_validate(options)


def test_the_presets() -> None:
    found = {name: resolve(sync(preset=name)) for name in PRESETS}
    table = {
        name: (m.schedule, m.topology, m.rule, m.outer_lr, m.outer_momentum, m.consensus, m.codec, m.result_codec)
        for name, m in found.items()
    }
    assert table == {
        "gossip": ("full", "pair", "noloco", 1.0, 0.0, 1.0, "modulo7", ""),
        "noloco": ("full", "pair", "noloco", 0.7, 0.5, 0.7, "modulo7", ""),
        "streaming-noloco": ("streaming", "pair", "noloco", 0.7, 0.5, 0.7, "bf16", ""),
        "diloco": ("full", "group", "nesterov", 0.7, 0.5, 0.0, "fp32", "fp32"),
        "streaming-diloco": ("streaming", "group", "nesterov", 0.7, 0.5, 0.0, "int4", "int8"),
        "gasloc": ("full", "pair", "gasloc", 1.0, 0.3, 1.0, "bf16", ""),
        "streaming-gasloc": ("streaming", "pair", "gasloc", 1.0, 0.3, 1.0, "bf16", ""),
        "snoo": ("full", "solo", "nesterov", 0.7, 0.5, 0.0, "fp32", ""),
        "qsr": ("full", "group", "sgd", 1.0, 0.0, 0.0, "fp32", "fp32"),
        "sparseloco": ("full", "group", "sgd", 1.0, 0.0, 0.0, "topk", "sparse"),
        "eager": ("streaming", "group", "nesterov", 0.7, 0.0, 0.0, "fp32", "fp32"),
        "heloco": ("full", "group", "heloco", 0.7, 0.5, 0.0, "fp32", "fp32"),
        "none": ("full", "solo", "sgd", 1.0, 0.0, 0.0, "fp32", ""),
    }
    for name, method in found.items():
        cut = (method.fragments, method.fragment_layout, method.fragments_apart, method.fragment_update_alpha)
        kept = 0.0 if name in ("streaming-gasloc", "eager") else 0.5
        assert cut == ((2, "strided", False, kept) if method.schedule == "streaming" else (1, "whole", False, 0.0))


@pytest.mark.parametrize(
    ("options", "codec"),
    [
        ({}, "modulo7"),
        ({"outer_lr": 0.5}, "modulo7"),
        ({"schedule": "streaming"}, "bf16"),
        ({"rule": "gasloc"}, "bf16"),
        ({"schedule": "streaming", "codec": "modulo7"}, "modulo7"),
        ({"consensus": 0.4}, "bf16"),
        ({"topology": "group", "rule": "nesterov"}, "bf16"),
        ({"topology": "solo"}, "bf16"),
        ({"consensus": 0.4, "codec": "fp32"}, "fp32"),
    ],
)
def test_the_lattice_codec_of_noloco_yields_where_it_does_not_fit(options: dict[str, Any], codec: str) -> None:
    assert resolve(sync(**options)).codec == codec


@pytest.mark.parametrize("name", PRESETS)
def test_the_table_of_presets_says_what_is_resolved(name: str) -> None:
    assert replace(resolve(sync(preset=name)), fragment_sync_delay=0.0) == PRESETS[name].method


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_cuts_the_tiny_model(name: str) -> None:
    method = resolve(sync(preset=name))
    assert len(layout_for(LlamaSection(), method).fragments) == method.fragments


def test_the_manifest_knows_exactly_the_presets() -> None:
    assert get_args(SyncSection.model_fields["preset"].annotation) == tuple(PRESETS)


@pytest.mark.parametrize(
    ("clock", "every", "delay"),
    [
        ("steps", 20, 5),
        ("steps", 100, 5),
        ("steps", 18, 1),
        ("steps", 2, 1),
        ("seconds", 300, 5),
        ("seconds", 10, 0.2),
        ("seconds", 1, 0.1),
        ("seconds", 3600, 60),
    ],
)
def test_the_delay_follows_the_clock(clock: str, every: float, delay: float) -> None:
    method = resolve(sync(preset="streaming-noloco", clock=clock, sync_every=every))
    assert method.fragment_sync_delay == delay


def test_a_changed_schedule_brings_its_own_fragments_and_merge() -> None:
    streamed = resolve(sync(preset="noloco", schedule="streaming", clock="steps", sync_every=20))
    assert streamed == resolve(sync(preset="streaming-noloco", clock="steps", sync_every=20))
    assert resolve(sync(preset="streaming-diloco", schedule="full", codec="fp32")) == resolve(sync(preset="diloco"))


def test_what_follows_from_the_choices_made() -> None:
    assert resolve(sync(outer_lr=0.5)).consensus == 0.5
    assert resolve(sync(preset="diloco", codec="int8")).result_codec == "fp16"
    assert resolve(sync(preset="streaming-diloco", codec="fp32")).result_codec == "fp32"
    assert resolve(sync(preset="diloco", codec="int4")).result_codec == "int8"
    assert resolve(sync(preset="diloco", codec="topk")).result_codec == "fp16"
    assert resolve(sync(preset="sparseloco", codec="int8")).result_codec == "fp16"
    assert resolve(sync(preset="sparseloco", result_codec="fp16")).result_codec == "fp16"
    assert resolve(sync(preset="diloco", rule="sgd", outer_lr=1.0)).outer_momentum == 0.0
    paired = resolve(sync(preset="diloco", topology="pair", rule="noloco", codec="modulo7"))
    assert paired == resolve(sync(preset="noloco"))
    assert resolve(sync(preset="noloco", rule="gasloc")) == resolve(sync(preset="gasloc"))
    assert resolve(sync(preset="streaming-noloco", rule="gasloc")) == resolve(sync(preset="streaming-gasloc"))
    assert resolve(sync(preset="gasloc", schedule="streaming")) == resolve(sync(preset="streaming-gasloc"))
    assert resolve(sync(preset="streaming-gasloc", fragment_update_alpha=0.5)).fragment_update_alpha == 0.5
    assert resolve(sync(preset="diloco")).weights == "tokens"
    assert resolve(sync(preset="snoo")).weights == ""
    assert resolve(sync(preset="diloco")).mean == "weighted"
    assert resolve(sync(preset="snoo")).mean == ""
    grouped = resolve(sync(preset="noloco", topology="group", rule="nesterov", codec="fp32"))
    assert grouped == resolve(sync(preset="diloco"))


def test_the_radial_mean_has_an_outer_lr_of_its_own() -> None:
    assert resolve(sync(preset="diloco", mean="rda")).outer_lr == 0.49
    assert resolve(sync(preset="qsr", mean="rda")).outer_lr == 0.7
    assert resolve(sync(preset="diloco", mean="rda", outer_lr=0.7)).outer_lr == 0.7
    told = {name: source for name, _, source in sources(sync(preset="diloco", mean="rda"))}
    assert (told["mean"], told["outer_lr"], told["weights"]) == ("manifest", "default", "preset")


def test_outside_the_blocks_is_set_apart_from_three_fragments_on() -> None:
    def apart(**options: Any) -> bool:
        return resolve(sync(preset="streaming-diloco", **options)).fragments_apart

    assert not apart(fragments=2)
    assert apart(fragments=3)
    assert apart(fragments=3, fragment_layout="sequential")
    assert not apart(fragments=3, fragment_layout="balanced")
    assert not apart(fragments=3, fragments_apart=False)
    assert apart(fragments=2, fragments_apart=True)


def test_a_consensus_of_its_own_sends_the_outer_params_too() -> None:
    assert resolve(sync(consensus=0.7)).vectors == 1
    assert resolve(sync(consensus=0.5)).vectors == 2
    assert resolve(sync(preset="gasloc", outer_lr=0.7)).vectors == 1
    assert resolve(sync(preset="diloco")).vectors == 1
    assert resolve(sync(preset="none")).vectors == 0


def test_where_each_choice_comes_from() -> None:
    told = {name: source for name, _, source in sources(sync(preset="streaming-noloco", fragments=4, sync_every=60))}
    assert told["fragments"] == told["sync_every"] == "manifest"
    assert told["outer_lr"] == told["fragment_layout"] == "preset"
    assert told["fragments_apart"] == told["fragment_sync_delay"] == told["clock"] == "default"


def test_the_error_lists_every_reason() -> None:
    with pytest.raises(ManifestError) as caught:
        resolve(sync(outer_momentum=0.9, fragments=2))
    assert "diverges" in caught.value.found
    assert "schedule full has one fragment" in caught.value.found
