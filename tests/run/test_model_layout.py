from __future__ import annotations

from typing import Any

import pytest

from peer.errors import ManifestError
from peer.protocol.model.layout import Layout
from peer.run.model_layout import layout_for, layout_refusal, tensors_of
from peer.run.resolve import method_of, resolve
from peer.run.schema import parse_manifest
from peer.run.sections import LlamaSection, SyncSection
from peer.trainer.models.llama import layout_of


@pytest.mark.parametrize(
    "model",
    [
        LlamaSection(),
        LlamaSection(
            vocab_size=1000, hidden_size=96, intermediate_size=200, num_hidden_layers=3, num_key_value_heads=1
        ),
        LlamaSection(hidden_size=128, num_attention_heads=8, num_key_value_heads=2, num_hidden_layers=12),
    ],
)
def test_tensors_are_those_of_the_model_in_its_order(model: LlamaSection) -> None:
    assert tuple(tensors_of(model)) == layout_of(model).tensors


def test_a_full_schedule_lies_as_the_model_does() -> None:
    assert layout_for(LlamaSection(), resolve(SyncSection())) == layout_of(LlamaSection())


def blocks(layout: Layout, fragment: int) -> set[str]:
    first, end = layout.fragments[fragment]
    return {".".join(tensor.name.split(".")[1:3]) for tensor in layout.tensors[first:end]}


def test_the_manifests_choices_are_the_cut() -> None:
    def layout(**options: Any) -> Layout:
        return layout_for(LlamaSection(), resolve(SyncSection(preset="streaming-diloco", **options)))

    assert blocks(layout(), 1) == {"layers.1", "layers.3"}
    assert blocks(layout(fragment_layout="sequential"), 1) == {"layers.2", "layers.3"}
    assert blocks(layout(fragments=3), 2) == {"embed_tokens.weight", "norm.weight"}
    assert blocks(layout(fragments=3, fragments_apart=False), 2) == {"layers.2"}


def test_more_fragments_than_blocks_are_refused_where_the_manifest_says_so() -> None:
    text = 'format = 1\n[sync]\npreset = "streaming-noloco"\nfragments = 6\n'
    with pytest.raises(ManifestError, match=r"line 4, sync\.fragments: the model has 4 blocks"):
        parse_manifest(text.encode())
    assert "4 blocks" in layout_refusal(
        method_of(SyncSection(preset="streaming-noloco", fragments=6)), tensors_of(LlamaSection())
    )
    parse_manifest((text + "[model]\nnum_hidden_layers = 5\n").encode())
