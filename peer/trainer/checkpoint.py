"""The trainer's part of a checkpoint: params and moments as safetensors, its place in the run as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from peer.errors import StateError
from peer.trainer.accounting import WorkTally
from peer.trainer.arena import PLACE
from peer.trainer.data.account import DataPosition
from peer.trainer.inner_loop import InnerLoop

TENSORS = "trainer.safetensors"
FORMAT = 1
FIELDS = (
    "format",
    "tokens",
    "round",
    "step_in_round",
    "since_apply",
    "age",
    "loss_scale",
    "loss_scale_steps",
    "tallies",
    "data",
)
"""Keys of the JSON file, in their order."""


@dataclass(frozen=True, slots=True)
class LoopPosition:
    """Place of the inner loop in the run."""

    tokens: int
    """The token counter."""
    round: int
    step_in_round: int
    since_apply: int
    """Inner steps since the last snapshot of any fragment."""
    age: int
    """Updates of the inner optimizer."""
    tallies: list[WorkTally]
    """Work since the base, per fragment."""
    data: DataPosition | None = None
    """None: an older program wrote this."""


@dataclass(frozen=True, slots=True)
class _Save:
    """Remaining fields of the file, next to those of `LoopPosition`."""

    format: int
    loss_scale: float
    loss_scale_steps: int
    """Steps since the loss scale last changed."""


def save(
    folder: Path, loop: InnerLoop, tokens: int, since_apply: int, tallies: list[WorkTally], data: DataPosition
) -> None:
    """Write the trainer's files. Raises OSError or SafetensorError. The caller makes the folder appear at once."""
    tensors = {
        "params": loop.params,
        "exp_avg": loop.optimizer.exp_avg,
        "exp_avg_sq": loop.optimizer.exp_avg_sq,
    }
    save_file({name: tensor.cpu() for name, tensor in tensors.items()}, folder / TENSORS)
    saved = _Save(FORMAT, loop.scale.value, loop.scale.good_steps)
    place = LoopPosition(tokens, loop.round, loop.step_in_round, since_apply, loop.optimizer.age, tallies, data)
    fields = asdict(saved) | asdict(place)
    (folder / PLACE).write_text(json.dumps({name: fields[name] for name in FIELDS}) + "\n")


def load(folder: Path, loop: InnerLoop, tokens: int) -> LoopPosition | None:
    """Restore the inner optimizer, and params and place when the saved token count equals `tokens`.

    Otherwise the work since the save is lost, and None is returned. Raises StateError when the folder is not one of
    `save` for this model."""
    try:
        raw = (folder / PLACE).read_bytes()
        saved, place = TypeAdapter(_Save).validate_json(raw), TypeAdapter(LoopPosition).validate_json(raw)
        tensors = load_file(folder / TENSORS)
        own = {"params": loop.params, "exp_avg": loop.optimizer.exp_avg, "exp_avg_sq": loop.optimizer.exp_avg_sq}
        fits = [tensors[name].shape == tensor.shape for name, tensor in own.items()]
    except (OSError, ValidationError, SafetensorError, KeyError) as error:
        raise _unusable(folder, str(error)) from error
    if saved.format != FORMAT or not all(fits):
        raise _unusable(folder, "it is of another format or model")
    loop.optimizer.restore(tensors["exp_avg"], tensors["exp_avg_sq"], place.age)
    loop.scale.restore(saved.loss_scale, saved.loss_scale_steps)
    if place.tokens != tokens:
        return None
    with torch.no_grad():
        loop.params.copy_(tensors["params"])
    loop.move_to(place.round, place.step_in_round)
    return place


def data_place(folder: Path) -> DataPosition | None:
    """Read the place in the data; None when an older program wrote the folder. Raises StateError."""
    try:
        return TypeAdapter(LoopPosition).validate_json((folder / PLACE).read_bytes()).data
    except (OSError, ValidationError) as error:
        raise _unusable(folder, str(error)) from error


def _unusable(folder: Path, why: str) -> StateError:
    return StateError(f"the trainer's part of {folder} cannot be used: {why}", "Move this folder away and join again.")
