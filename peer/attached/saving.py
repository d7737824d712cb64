"""Saves and loads an attached loop's part of a checkpoint: params and optimizer states as safetensors, the place as
JSON.

If the params are sharded, each rank has two files of its own, with its rows."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from peer.attached.shards import local_part, placed_as
from peer.errors import StateError
from peer.trainer.accounting import WorkTally
from peer.trainer.arena import ATTACHED_PLACE

TENSORS = "loop.safetensors"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class LoopCheckpoint:
    """The place of a user's loop in the run, and the numbers in its optimizers' states."""

    format: int
    tokens: int
    """The token counter at the save."""
    round: int
    step_in_round: int
    since_snapshot: int
    """Inner steps since the last snapshot of any fragment."""
    tallies: list[WorkTally]
    """Per fragment, the work since its base."""
    optimizers: list[dict[str, dict[str, Any]]]
    """Per optimizer: index of a parameter -> name of a value -> number. Tensors are in the other file."""
    shards: int = 1
    """Number of ranks that each wrote a part."""


def _shard_file(file: str, shard: int) -> str:
    return file if shard == 0 else f"{shard}.{file}"


def save(
    folder: Path,
    named: Mapping[str, Tensor],
    optimizers: Sequence[torch.optim.Optimizer],
    place: tuple[int, int, int, int],
    tallies: Sequence[WorkTally],
    shard: tuple[int, int] = (0, 1),
) -> None:
    """Write this rank's files. Raises OSError and SafetensorError.

    `place`: (tokens, round, step in the round, steps since the last snapshot). `shard`: (number of this rank's part,
    number of parts)."""
    tensors = {f"model.{name}": tensor.detach().cpu().contiguous() for name, tensor in named.items()}
    numbers = list[dict[str, dict[str, Any]]]()
    for number, optimizer in enumerate(optimizers):
        kept: dict[str, dict[str, Any]] = {}
        for index, values in optimizer.state_dict()["state"].items():
            kept[str(index)] = {}
            for key, value in values.items():
                if isinstance(value, Tensor):
                    tensors[f"optimizer.{number}.{index}.{key}"] = local_part(value).detach().cpu().contiguous()
                elif isinstance(value, int | float | bool):
                    kept[str(index)][key] = value
        numbers.append(kept)
    own, shards = shard
    save_file(_unshared(tensors), folder / _shard_file(TENSORS, own))
    written = LoopCheckpoint(FORMAT, *place, list(tallies), numbers, shards)
    (folder / _shard_file(ATTACHED_PLACE, own)).write_text(json.dumps(asdict(written)) + "\n")


def _unshared(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors such that none share memory, as safetensors requires.

    Only views of a larger tensor, and a tensor that occurs again, are copied, because copying all would be
    expensive."""
    found, seen = dict[str, Tensor](), set[int]()
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        whole = storage.nbytes() == tensor.nbytes and storage.data_ptr() not in seen
        seen.add(storage.data_ptr())
        found[name] = tensor if whole else tensor.clone()
    return found


def load(
    folder: Path,
    named: Mapping[str, Tensor],
    optimizers: Sequence[torch.optim.Optimizer],
    tokens: int,
    shard: tuple[int, int] = (0, 1),
) -> tuple[LoopCheckpoint | None, str]:
    """Restore the optimizers' states, and if the saved token count equals `tokens` also the params.

    Returns the saved place (None: the params were not restored), and a sentence about the optimizers for the log.
    `shard`: (number of this rank's part, number of parts). A checkpoint with another number of parts restores nothing.
    Raises StateError when the folder was not written by `save` for this model."""
    try:
        own, shards = shard
        first = TypeAdapter(LoopCheckpoint).validate_json((folder / ATTACHED_PLACE).read_bytes())
        if first.format == FORMAT and first.shards != shards:
            return None, f"the optimizers start without state: {first.shards} ranks have saved, {shards} are here"
        place = TypeAdapter(LoopCheckpoint).validate_json((folder / _shard_file(ATTACHED_PLACE, own)).read_bytes())
        tensors = load_file(folder / _shard_file(TENSORS, own))
        saved = {name: tensors[f"model.{name}"] for name in named}
        fits = place.format == FORMAT and all(saved[name].shape == live.shape for name, live in named.items())
    except (OSError, ValidationError, SafetensorError, KeyError) as error:
        raise _unusable(folder, str(error)) from error
    if not fits:
        raise _unusable(folder, "it is of another format or model")
    optimizers_state = _restore(optimizers, place, tensors)
    if place.tokens != tokens:
        return None, optimizers_state
    with torch.no_grad():
        for name, live in named.items():
            live.copy_(saved[name])
    return place, optimizers_state


def _restore(optimizers: Sequence[torch.optim.Optimizer], place: LoopCheckpoint, tensors: Mapping[str, Tensor]) -> str:
    """Restore the optimizers' states if they fit. Settings such as the learning rate stay those of the user.

    Returns a sentence about what was done, for the log."""
    if len(optimizers) != len(place.optimizers):
        return f"the optimizers start without state: {len(place.optimizers)} are saved, {len(optimizers)} are here"
    states = list[dict[int, dict[str, Any]]]()
    for number, (optimizer, kept) in enumerate(zip(optimizers, place.optimizers, strict=True)):
        params = [param for group in optimizer.param_groups for param in group["params"]]
        state = {int(index): dict(values) for index, values in kept.items()}
        for name, tensor in tensors.items():
            parts = name.split(".", 3)
            if parts[:2] == ["optimizer", str(number)]:
                state.setdefault(int(parts[2]), {})[parts[3]] = tensor
        if any(index >= len(params) for index in state) or not all(
            value.shape in (local_part(params[index]).shape, torch.Size([]))
            for index, values in state.items()
            for value in values.values()
            if isinstance(value, Tensor)
        ):
            return "the optimizers start without state: the checkpoint is of optimizers of other parameters"
        for index, values in state.items():
            for key, value in values.items():
                if isinstance(value, Tensor) and value.dim() > 0:
                    values[key] = placed_as(params[index], value)
        states.append(state)
    for optimizer, state in zip(optimizers, states, strict=True):
        optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})
    return "the optimizers were restored from the checkpoint"


def _unusable(folder: Path, why: str) -> StateError:
    return StateError(f"the loop's part of {folder} cannot be used: {why}", "Move this folder away and join again.")
