"""Writes the model card, which describes a model and its origin."""

from __future__ import annotations

from peer.result.evaluate import LossReport
from peer.result.model import RunModel
from peer.run.description import described_model
from peer.run.files.model_config import read_config
from peer.run.resolve import resolve
from peer.run.sections import CustomSection

MOST_NAMED = 64
"""Peers that the card lists by id."""


def model_card(model: RunModel, found: LossReport | None, no_loss_reason: str, *, library: str = "") -> str:
    """Return the card in Markdown. `found`: the measured loss; None: there is none, for the reason `no_loss_reason`.

    `library`: name of the program that reads the folder. Empty: none in particular."""
    run, manifest = model.run, model.run.manifest
    method = resolve(manifest.sync)
    unit = "s" if manifest.sync.clock == "seconds" else "inner steps"
    rows = {
        "run": f"`{run.run_id.hex()}`",
        "operator": f"`{manifest.operator}`",
        "model": f"{_kind(model)}, {manifest.model.parameters:,} parameters",
        "data": manifest.data.kind,
        "method": f"{manifest.sync.preset}: {method.topology}, {method.rule}, every {method.sync_every:g} {unit}",
        "rounds": f"{model.round:,} of {manifest.rounds:,}",
        "tokens": "not known" if model.tokens is None else f"at least {model.tokens:,}",
        "loss": no_loss_reason if found is None else _loss(found),
        "state": _one_line(model.origin),
    }
    lines = [
        *_head(library, "" if isinstance(manifest.model, CustomSection) else "text-generation"),
        f"# {manifest.name}",
        "",
    ]
    what = "A model" if isinstance(manifest.model, CustomSection) else "A language model"
    lines += [f"{what} that volunteers trained together over the internet with `peer`.", ""]
    lines += ["| | |", "| --- | --- |", *(f"| {name} | {_cell(value)} |" for name, value in rows.items())]
    if model.donors:
        more = len(model.donors) - MOST_NAMED
        named = [f"* `{donor}`" for donor in model.donors[:MOST_NAMED]]
        lines += ["", "## Peers", "", "The state is of these peers. Others may have trained it with them:", "", *named]
        lines += [f"* and {more} more"] * (more > 0)
    return "\n".join(lines) + "\n"


def _kind(model: RunModel) -> str:
    """Return the model type by its name in transformers."""
    config = model.run.files.run.config
    if isinstance(model.run.manifest.model, CustomSection):
        return described_model(model.run.manifest)
    return "llama" if config is None else str(read_config(config.read_bytes())["model_type"])


def _head(library: str, task: str) -> list[str]:
    named = [f"library_name: {library}"] if library else []
    named += [f"pipeline_tag: {task}"] if task else []
    return ["---", *named, "tags:", "- peer", "---", ""]


def _loss(found: LossReport) -> str:
    bits = "" if found.bits_per_byte is None else f", {found.bits_per_byte:.4f} bits per byte"
    return f"{found.loss:.4f} nats per token{bits}, on {found.tokens:,} tokens of {found.description}"


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _cell(text: str) -> str:
    return _one_line(text).replace("|", "\\|")
