from __future__ import annotations

import pytest

from peer.run.sections import LlamaSection
from peer.trainer.models.llama import layout_of


@pytest.mark.parametrize(
    "model",
    [
        LlamaSection(),
        LlamaSection(
            vocab_size=1000, hidden_size=96, intermediate_size=200, num_hidden_layers=3, num_key_value_heads=1
        ),
        LlamaSection(hidden_size=128, num_attention_heads=8, num_key_value_heads=2),
    ],
)
def test_the_size_computed_from_the_section_is_the_models(model: LlamaSection) -> None:
    assert model.parameters == layout_of(model).elements
