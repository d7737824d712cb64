"""What a trainer writes into a checkpoint's folder, and reads back: params and moments as safetensors, its place as
JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from pydantic import TypeAdapter, ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from peer.errors import StateError
from peer.trainer.accounting import WorkAccounts
from peer.trainer.inner_loop import InnerLoop

TENSORS = "trainer.safetensors"
PLACE = "trainer.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class LoopPosition:
    """Where the inner loop stood."""

    format: int
    tokens: int
    """The token counter."""
    round: int
    step_in_round: int
    since_apply: int
    """Inner steps since the last snapshot of any fragment, which in `full` has been applied."""
    age: int
    """Updates of the inner optimizer."""
    loss_scale: float
    loss_scale_steps: int
    tallies: list[WorkAccounts]
    """Since the base, for each fragment."""


def save(folder: Path, loop: InnerLoop, tokens: int, since_apply: int, tallies: list[WorkAccounts]) -> None:
    """Raises OSError or SafetensorError; the folder's atomicity is the caller's business."""
    tensors = {
        "params": loop.params,
        "exp_avg": loop.optimizer.exp_avg,
        "exp_avg_sq": loop.optimizer.exp_avg_sq,
    }
    save_file({name: tensor.cpu() for name, tensor in tensors.items()}, folder / TENSORS)
    scale = loop.scale
    place = LoopPosition(
        format=FORMAT,
        tokens=tokens,
        round=loop.round,
        step_in_round=loop.step_in_round,
        since_apply=since_apply,
        age=loop.optimizer.age,
        loss_scale=scale.value,
        loss_scale_steps=scale.good_steps,
        tallies=tallies,
    )
    (folder / PLACE).write_text(json.dumps(asdict(place)) + "\n")


def load(folder: Path, loop: InnerLoop, tokens: int) -> LoopPosition | None:
    """Restore the inner optimizer; and, when the saved token count equals `tokens`, params and place too. None: the
    work since the save is lost, so the place is not taken over.

    Raises StateError when the folder is not what `save` wrote for this model."""
    try:
        place = TypeAdapter(LoopPosition).validate_json((folder / PLACE).read_bytes())
        tensors = load_file(folder / TENSORS)
        fits = [tensors[name].shape == loop.params.shape for name in ("params", "exp_avg", "exp_avg_sq")]
    except (OSError, ValidationError, SafetensorError, KeyError) as error:
        raise _unusable(folder, str(error)) from error
    if place.format != FORMAT or not all(fits):
        raise _unusable(folder, "it is of another format or model")
    loop.optimizer.exp_avg.copy_(tensors["exp_avg"])
    loop.optimizer.exp_avg_sq.copy_(tensors["exp_avg_sq"])
    loop.optimizer.age = place.age
    loop.scale.value, loop.scale.good_steps = place.loss_scale, place.loss_scale_steps
    if place.tokens != tokens:
        return None
    with torch.no_grad():
        loop.params.copy_(tensors["params"])
    loop.move_to(place.round, place.step_in_round)
    return place


def _unusable(folder: Path, why: str) -> StateError:
    return StateError(f"the trainer's part of {folder} cannot be used: {why}", "Move this folder away and join again.")
