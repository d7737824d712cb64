"""A folder of weights that is incomplete, damaged or of an unsupported kind is refused before a library opens it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from peer.errors import ModelError
from peer.protocol.model.layout import TensorSpec
from peer.trainer.sandbox import inspect_config
from peer.trainer.weight_files import INDEX, WEIGHTS, check_folder

WHOLE = save({"a": torch.ones(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)})
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 9976576152\n"
HEADER = int.from_bytes(WHOLE[:8], "little")


def index(**places: str) -> bytes:
    return json.dumps({"metadata": {"total_size": 32}, "weight_map": places}).encode()


def write(path: Path, raw: bytes) -> Path:
    path.write_bytes(raw)
    return path.parent


def test_a_whole_folder_tells_the_types_of_its_tensors(tmp_path: Path) -> None:
    assert check_folder(write(tmp_path / WEIGHTS, WHOLE)) == {"a": "F32", "b": "BF16"}
    assert check_folder(tmp_path, [TensorSpec("a", (2, 3)), TensorSpec("other", (5,))]) == {"a": "F32", "b": "BF16"}
    (tmp_path / WEIGHTS).rename(tmp_path / "one.safetensors")
    (tmp_path / INDEX).write_bytes(index(a="one.safetensors", b="one.safetensors"))
    assert check_folder(tmp_path) == {"a": "F32", "b": "BF16"}


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"pytorch_model.bin": b"x"}, "no weights in safetensors"),
        ({WEIGHTS: WHOLE, "adapter_config.json": b"{}"}, "an adapter"),
        (
            {WEIGHTS: save({"h.0.q_proj.qweight": torch.ones(2, dtype=torch.int32)})},
            "quantized weights: h.0.q_proj.qweight",
        ),
        ({"x.safetensors": WHOLE}, f"neither {WEIGHTS} nor {INDEX}"),
        ({WEIGHTS: POINTER}, f"{WEIGHTS} is a pointer of Git LFS"),
        ({INDEX: POINTER}, f"{INDEX} is a pointer of Git LFS"),
        ({INDEX: index(a="1.safetensors"), "1.safetensors": POINTER}, "1.safetensors is a pointer of Git LFS"),
        (
            {INDEX: index(a="1.safetensors", c="2.safetensors"), "1.safetensors": WHOLE},
            "lacks 1 of 2 files of weights",
        ),
        ({INDEX: index(a="1.safetensors", c="1.safetensors"), "1.safetensors": WHOLE}, "lacks tensors"),
        ({INDEX: index(a="../b.safetensors")}, "../b.safetensors"),
        ({INDEX: index(a="b.bin")}, "b.bin"),
        ({INDEX: b'{"weight_map": 5}'}, "is no index"),
        ({INDEX: b"[" * 10**5}, "is no index"),
        ({INDEX: index()}, "names no file"),
        ({WEIGHTS: b""}, "is no safetensors file (0 bytes"),
        ({WEIGHTS: b"<!DOCTYPE html><html>"}, "is no safetensors file"),
        ({WEIGHTS: b"PK\x03\x04 a pickle of torch.save"}, "is no safetensors file"),
        ({WEIGHTS: WHOLE[:-1]}, "was cut off or damaged"),
        ({WEIGHTS: WHOLE[:40]}, "was cut off or damaged"),
        ({WEIGHTS: WHOLE + b"x"}, "was cut off or damaged"),
        ({WEIGHTS: WHOLE[:8] + b"{" + b"x" * (HEADER - 1) + WHOLE[8 + HEADER :]}, "has no header"),
    ],
)
def test_a_folder_is_refused_in_words_for_its_owner(files: dict[str, bytes], words: str, tmp_path: Path) -> None:
    for name, raw in files.items():
        (tmp_path / name).write_bytes(raw)
    with pytest.raises(ModelError, match=re.escape(words)) as caught:
        check_folder(tmp_path)
    assert "stranger" not in caught.value.why
    assert str(tmp_path) in caught.value.found


def test_a_wrong_shape_is_told_with_both(tmp_path: Path) -> None:
    write(tmp_path / WEIGHTS, WHOLE)
    with pytest.raises(ModelError, match=re.escape("tensor a is [2, 3] in ")) as caught:
        check_folder(tmp_path, [TensorSpec("a", (3, 3))])
    assert "[3, 3] by the folder's config.json" in caught.value.found


def test_a_config_that_is_a_pointer_is_told_so(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"config\.json is a pointer of Git LFS") as caught:
        inspect_config(write(tmp_path / "config.json", POINTER) / "config.json", 10**6)
    assert "git lfs pull" in caught.value.fix
