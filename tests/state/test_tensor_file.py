"""A file that is hashed while it is written can be read by safetensors, and has the returned digest."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from peer.state import tensor_file
from peer.state.files import digest_of
from peer.state.tensor_file import write_tensors


@pytest.mark.parametrize("chunk", [7, 2**22])
def test_safetensors_reads_it_and_its_digest_is_that_of_the_bytes(
    tmp_path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensor_file, "_CHUNK", chunk)
    tensors = {"outer_params": torch.randn(1001), "outer_momentum": torch.randn(1001), "none": torch.empty(0)}
    path = tmp_path / "a.safetensors"
    assert write_tensors(path, tensors) == digest_of(path)
    read = load_file(path)
    assert read.keys() == tensors.keys()
    assert all(torch.equal(read[name], tensor) for name, tensor in tensors.items())
    with safe_open(path, framework="pt") as file:
        assert file.get_slice("outer_params").get_dtype() == "F32"


def test_a_part_of_a_larger_tensor_is_written_alone(tmp_path: Path) -> None:
    whole = torch.arange(100.0)
    write_tensors(tmp_path / "a", {"a": whole[10:20]})
    assert torch.equal(load_file(tmp_path / "a")["a"], whole[10:20])


def test_a_file_that_is_there_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"here")
    with pytest.raises(FileExistsError):
        write_tensors(tmp_path / "a", {"a": torch.zeros(4)})
    assert (tmp_path / "a").read_bytes() == b"here"
