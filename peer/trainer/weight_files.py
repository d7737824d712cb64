"""Checks a folder of pretrained weights before any library opens it: its index, its files and their headers.

The folder belongs to the operator, so each error names the file, its fault and the remedy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from peer.errors import ModelError
from peer.protocol.model.layout import TensorSpec
from peer.run.files.model_config import UNQUANTIZED

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
MOST_INDEX_BYTES, MOST_HEADER_BYTES = 64 * 2**20, 100 * 2**20
LFS = b"version https://git-lfs"
FETCH = "Download the folder again in full, for example with: hf download NAME --local-dir FOLDER"
WHY = "The run begins from these files. They are checked before anybody is given a state that is made of them."
PACKED = (".qweight", ".weight_packed", ".SCB", ".weight_scale_inv")
"""Suffixes of the names of quantized tensors: GPTQ and AWQ, compressed-tensors, bitsandbytes, and blockwise fp8."""
MOST_NAMED = 5
"""Most tensors or files that one message names."""


def folder_error(found: str, fix: str = FETCH) -> ModelError:
    """Make the error for a folder of weights that cannot be used."""
    return ModelError(found, fix, WHY)


def named(names: Sequence[str]) -> str:
    """Return the first names for a message, followed by the number of names that are left out."""
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def check_no_pointer(path: Path, start: bytes) -> None:
    """Raise ModelError for a Git LFS pointer file. `start`: the file's first bytes."""
    if start.startswith(LFS):
        raise folder_error(f"{path} is a pointer of Git LFS, not the file itself", "Run in its folder: git lfs pull")


def check_folder(folder: Path, tensors: Sequence[TensorSpec] = ()) -> dict[str, str]:
    """Return the type of each tensor in a folder, by its name in safetensors (such as `BF16`).

    `tensors`: the model's tensors. A tensor of the folder must have the shape of the model's tensor with the same name.
    Raises ModelError for a folder that is incomplete or damaged, or whose content is not supported."""
    types, shapes = dict[str, str](), {tensor.name: tensor.shape for tensor in tensors}
    for path, wanted in _files(folder).items():
        header = _header(path)
        if lacking := sorted(wanted - header.keys()):
            raise folder_error(f"{path} lacks tensors that {INDEX} places there: {named(lacking)}")
        for name, entry in header.items():
            shape = tuple(entry["shape"])
            if shapes.get(name, shape) != shape:
                raise folder_error(
                    f"tensor {name} is {list(shape)} in {path}, {list(shapes[name])} by the folder's config.json",
                    "Take config.json and weights of one model.",
                )
            types[name] = entry["dtype"]
    if packed := sorted(name for name in types if name.endswith(PACKED)):
        raise folder_error(f"the folder {folder} holds quantized weights: {named(packed)}", UNQUANTIZED)
    return types


def _files(folder: Path) -> dict[Path, set[str]]:
    """Return the files that hold the weights, each with the tensors that the index assigns to it."""
    found = sorted(path.name for path in folder.glob("*.safetensors"))
    if not found and not (folder / INDEX).exists():
        raise folder_error(
            f"the folder {folder} holds no weights in safetensors",
            "Give a folder with config.json and *.safetensors. Weights in pickle files (*.bin, *.pt) are never opened.",
        )
    if (folder / "adapter_config.json").exists():
        raise folder_error(f"the folder {folder} holds an adapter, not a model", "Merge it into its model first.")
    if (folder / WEIGHTS).exists():
        return {folder / WEIGHTS: set()}
    index = folder / INDEX
    if not index.exists():
        raise folder_error(
            f"the folder {folder} holds {named(found)}, but neither {WEIGHTS} nor {INDEX}",
            f"Download the index too, or rename a single file to {WEIGHTS}.",
        )
    with index.open("rb") as file:
        raw = file.read(MOST_INDEX_BYTES + 1)
    check_no_pointer(index, raw)
    try:
        places = json.loads(raw)["weight_map"].items()
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise folder_error(f"{index} is no index of weights") from error
    files = dict[Path, set[str]]()
    for tensor, name in places:
        if not isinstance(name, str) or Path(name).name != name or not name.endswith(".safetensors"):
            raise folder_error(f"{index} names {str(name)[:80]!r}, which is no safetensors file of the folder")
        files.setdefault(folder / name, set()).add(tensor)
    if missing := sorted(path.name for path in files if not path.exists()):
        raise folder_error(
            f"the folder {folder} lacks {len(missing)} of {len(files)} files of weights: {named(missing)}"
        )
    if not files:
        raise folder_error(f"{index} names no file")
    return files


def _header(path: Path) -> dict[str, dict[str, Any]]:
    """Read the header of a safetensors file: tensor -> its `dtype`, `shape` and `data_offsets`.

    Raises ModelError, also for a file whose length does not match its header."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            start = file.read(64)
            check_no_pointer(path, start)
            length = int.from_bytes(start[:8], "little")
            if size < 8 or not start[8:].startswith(b"{") or length > MOST_HEADER_BYTES:
                raise folder_error(f"{path} is no safetensors file ({size:,} bytes that begin with {start[:16]!r})")
            file.seek(8)
            raw = file.read(length)
    except OSError as error:
        raise folder_error(f"cannot read {path}: {error.strerror}", "Make it readable for this user.") from error
    if len(raw) == length:
        try:
            table = json.loads(raw)
            header = {name: entry for name, entry in table.items() if name != "__metadata__"}
            end = max((entry["data_offsets"][1] for entry in header.values()), default=0)
            whole = all(isinstance(e["dtype"], str) and isinstance(e["shape"], list) for e in header.values())
        except (ValueError, RecursionError, KeyError, IndexError, TypeError, AttributeError) as error:
            raise folder_error(f"{path} has no header of a safetensors file") from error
        if not whole or not isinstance(end, int):
            raise folder_error(f"{path} has no header of a safetensors file")
        if size == 8 + length + end:
            return header
        length += end
    raise folder_error(
        f"{path} has {size:,} bytes, its header says {8 + length:,}: the download was cut off or damaged"
    )
