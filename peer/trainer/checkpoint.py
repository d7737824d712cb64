"""The built-in loop's part of a checkpoint: params and moments as safetensors, its place in the run as JSON."""

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
"""Keys of the JSON file, in the order in which they are written."""


@dataclass(frozen=True, slots=True)
class LoopPosition:
    """The inner loop's place in the run, as a checkpoint holds it."""

    tokens: int
    """The token counter at the save."""
    round: int
    step_in_round: int
    since_apply: int
    """Inner steps since the last snapshot of any fragment."""
    age: int
    """Number of updates that the inner optimizer has made."""
    tallies: list[WorkTally]
    """Per fragment, the work since its base."""
    data: DataPosition | None = None
    """None: an older version of this program wrote the file."""


@dataclass(frozen=True, slots=True)
class _Save:
    """The fields of the file that are not in `LoopPosition`."""

    format: int
    loss_scale: float
    loss_scale_steps: int
    """Steps since the loss scale last changed."""


def save(
    folder: Path, loop: InnerLoop, tokens: int, since_apply: int, tallies: list[WorkTally], data: DataPosition
) -> None:
    """Write the trainer's files into a draft folder, which the caller renames when it is complete.

    Raises OSError or SafetensorError."""
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
    """Restore the inner optimizer, and also params and place if the saved token count equals `tokens`.

    Returns None if the counts differ: work was done after the save, and the params that contained it are lost. Raises
    StateError when the folder was not written by `save` for this model."""
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
    """Read a checkpoint's place in the data. None: an older version wrote it. Raises StateError."""
    try:
        return TypeAdapter(LoopPosition).validate_json((folder / PLACE).read_bytes()).data
    except (OSError, ValidationError) as error:
        raise _unusable(folder, str(error)) from error


def _unusable(folder: Path, why: str) -> StateError:
    return StateError(f"the trainer's part of {folder} cannot be used: {why}", "Move this folder away and join again.")
