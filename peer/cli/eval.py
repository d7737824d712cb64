"""`peer eval`: measure the loss of a run's model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import click

from peer.cli.model_source import device_of, request_of, say, source_options
from peer.cli.options import as_json
from peer.cli.printing import echo


@click.command("eval", epilog="Example: peer eval TICKET --donors 4 --json   or: peer eval ~/.local/share/peer")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Evaluate on a folder of texts, or on the hold-out of a `peer data build`.  [default: the run's hold-out]",
)
@source_options
@as_json
@click.option("--report-start", is_flag=True, hidden=True, help="Print a line before the first source is opened.")
def command(sources: tuple[str, ...], data: Path | None, as_json: bool, report_start: bool, **options: Any) -> None:
    """Evaluate the model of a SOURCE: a home, a checkpoint folder, or a ticket (without joining the run). Several
    sources: their mean.

    The windows are the same as in the trainers' own evaluation, so the losses can be compared."""
    from peer.result.evaluate import measure, report
    from peer.result.holdout import is_shards
    from peer.result.source import load_model

    device = device_of(options)
    texts = data is not None and not is_shards(data)
    if report_start:  # `peer.node.operator.judge` waits for this line
        echo(json.dumps({"started": True}))
    tokenizer: Literal["open", "none"] = "open" if texts else "none"
    with request_of(options, tokenizer=tokenizer, holdout=data is None, computes="peer eval") as request:
        model = load_model(sources, request, say)
        found = measure(model, data, device)
    if as_json:
        echo(json.dumps(report(model, found)))
        return
    manifest = model.run.manifest
    bits = "not known" if found.bits_per_byte is None else f"{found.bits_per_byte:.4f}"
    echo(f"run            {manifest.name} ({model.run.run_id.hex()[:16]}), round {model.round}")
    echo(f"state          {model.origin}")
    echo(f"loss           {found.loss:.4f} nats a token")
    echo(f"bits per byte  {bits}")
    echo("perplexity     " + ("beyond every number" if found.perplexity is None else f"{found.perplexity:.2f}"))
    echo(f"measured on    {found.tokens:,} tokens of {found.description}")
