from __future__ import annotations

import json
from typing import Any

import pytest

from peer.errors import ModelError
from peer.run.files.model_config import MOST_CONFIG_BYTES, read_config

GOOD: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 128256,
    "rope_theta": 500000.0,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
    "architectures": ["LlamaForCausalLM"],
    "quantization_config": None,
    "max_position_embeddings": 131072,
}


def test_a_usual_config_is_read_and_where_it_came_from_is_left_out() -> None:
    given = {**GOOD, "_name_or_path": "meta-llama/Llama-3", "sub": {"_name_or_path": "../x"}}
    assert read_config(json.dumps(given).encode()) == {**GOOD, "sub": {}}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"auto_map": {"AutoModelForCausalLM": "modeling.Mine"}}, "code of others (auto_map)"),
        ({"sub": [{"auto_map": {}}]}, "code of others (sub.auto_map)"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers = 1000000000, more than 10,000"),
        ({"n_layer": -(10**9)}, "n_layer"),
        ({"vocab_size": 2**31}, "vocab_size = 2147483648"),
        ({"hidden_size": 2**31}, "hidden_size"),
        ({"sizes": [1, 2**900]}, "sizes = about 2^901"),
        ({"quantization_config": {"bits": 4}}, "quantized model"),
        ({"attn_implementation": "someone/kernel"}, "chooses how the model is computed"),
        ({"_attn_implementation_internal": "eager"}, "chooses how the model is computed"),
        ({"hidden_act": "../../etc/passwd"}, "holds a path"),
        ({"hidden_act": "a/b"}, "holds a path"),
        ({"hidden_act": "x" * 5000}, "a text of more than"),
        ({"model_type": "../x"}, "holds a path"),
        ({"model_type": "Llama!"}, "names no model_type"),
        ({"model_type": 5}, "names no model_type"),
        ({"values": [0] * 60_000}, "more than 50,000 values"),
        ({"deep": json.loads("[" * 40 + "]" * 40)}, "nested more than"),
    ],
)
def test_what_a_config_must_not_hold_is_named(change: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError) as caught:
        read_config(json.dumps({**GOOD, **change}).encode())
    assert words in caught.value.found
    assert ("transformers itself has this model_type" in caught.value.fix) == ("auto_map" in json.dumps(change))
    assert caught.value.fix != ModelError.fix


@pytest.mark.parametrize(
    ("value", "method"),
    [({"bits": 4, "quant_method": "gptq"}, ": gptq"), ({"quant_method": "auto-round"}, ": auto-round"), (True, "")],
)
@pytest.mark.parametrize("key", ["quantization_config", "compression_config"])
def test_a_quantized_model_is_refused_as_such_with_its_own_fix(key: str, value: Any, method: str) -> None:
    """The config names foreign code too, which must not hide that the model is quantized."""
    with pytest.raises(ModelError) as caught:
        read_config(json.dumps({"auto_map": {"AutoModelForCausalLM": "modeling.Mine"}, **GOOD, key: value}).encode())
    assert f"names a quantized model ({key}{method})" in caught.value.found
    assert "the model that the quantized one was made from" in caught.value.fix
    assert "code of others" not in caught.value.fix


@pytest.mark.parametrize(
    "raw",
    [b"", b"[]", b"\xff", b"[" * 10**5, b'{"a":' * 10**5, b'{"a": ' + b"9" * 5000 + b"}", b" " * MOST_CONFIG_BYTES * 2],
)
def test_bytes_that_are_no_config_are_refused(raw: bytes) -> None:
    with pytest.raises(ModelError):
        read_config(raw)
