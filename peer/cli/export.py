"""`peer export`: write a run's model to a folder for other programs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import click

from peer.cli.model_source import device_of, request_of, say, source_options
from peer.cli.options import as_json
from peer.cli.printing import echo
from peer.errors import OrdersNotCarriedOut


@click.command("export", epilog="Example: peer export TICKET my-model")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.argument("out", type=click.Path(path_type=Path), metavar="OUT")
@click.option(
    "--format",
    "kind",
    type=click.Choice(["hf", "safetensors"]),
    default="hf",
    show_default=True,
    help="hf: a folder for transformers. safetensors: the tensors by their names, with the run's manifest.",
)
@click.option(
    "--dtype",
    type=click.Choice(["float32", "bfloat16", "float16"]),
    help="Type of the weights.  [default: as in the folder that the run began from, else float32]",
)
@click.option(
    "--eval/--no-eval",
    "measures",
    default=True,
    show_default=True,
    help="Measure the loss for the model card, where the run's hold-out can be had.",
)
@source_options
@as_json
def command(
    sources: tuple[str, ...], out: Path, kind: str, measures: bool, as_json: bool, dtype: str | None, **options: Any
) -> None:
    """Write the model of a SOURCE (a home, a checkpoint folder, a ticket) to the new folder OUT. Several sources: their
    mean.

    The folder contains config, tokenizer, weights in safetensors, and a model card."""
    from peer.result.export.draft import check_vacant
    from peer.result.export.write import export
    from peer.result.source import load_model

    check_vacant(out)
    device = device_of(options) if measures else None
    tokenizer: Literal["copy", "none"] = "copy" if kind == "hf" else "none"
    computes = "the format hf" if kind == "hf" else ""
    with request_of(options, tokenizer=tokenizer, holdout=measures, computes=computes) as request:
        model = load_model(sources, request, say)
        found = export(model, out.absolute(), kind, device, say, dtype)
    if as_json:
        report = {"out": str(out), "format": kind, "run_id": model.run.run_id.hex(), "round": model.round}
        loss = None if found is None else found.loss
        report |= {"parameters": model.run.layout.elements, "loss": loss}
        echo(json.dumps(report | {"donors": list(model.donors), "left_out": dict(model.left_out)}))
    else:
        echo(f"wrote {out}: {model.run.layout.elements:,} parameters of round {model.round}")
    asked = click.get_current_context().get_parameter_source("measures") is click.core.ParameterSource.COMMANDLINE
    if asked and measures and found is None:
        raise OrdersNotCarriedOut("--eval: no loss could be measured", "Leave --eval out. The model itself is written.")
