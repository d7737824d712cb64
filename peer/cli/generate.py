"""`peer generate`: continue a text with a run's model."""

from __future__ import annotations

import json
import secrets
import sys
from typing import Any

import click

from peer.cli.model_source import device_of, request_of, say, source_options
from peer.cli.options import as_json
from peer.observe.formatting import harmless


@click.command("generate", epilog='Example: peer generate ~/.local/share/peer --prompt "Once upon a time" --seed 1')
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--prompt", required=True, help="The text to continue.")
@click.option("--max-tokens", type=click.IntRange(1, 10**6), default=128, show_default=True, help="At most so many.")
@click.option(
    "--temperature",
    type=click.FloatRange(0, 100),
    default=0.8,
    show_default=True,
    help="Below 1 likely tokens become likelier. 0: always the likeliest.",
)
@click.option(
    "--top-p",
    type=click.FloatRange(0, 1, min_open=True),
    default=0.95,
    show_default=True,
    help="Draw from the likeliest tokens that have this part of the probability together.",
)
@click.option(
    "--seed", type=click.IntRange(0, 2**63 - 1), help="The same seed gives the same text.  [default: a random one]"
)
@source_options
@as_json
def command(
    sources: tuple[str, ...],
    prompt: str,
    max_tokens: int,
    temperature: float,
    top_p: float,
    seed: int | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Continue a text with the model of a SOURCE: a home, a checkpoint folder, or a ticket. Several sources: their
    mean.

    Text is printed as it is generated, until the end of a document or --max-tokens."""
    from peer.result.generate import Sampling, prompt_tokens, sample
    from peer.result.source import load_model
    from peer.result.text import TextStream, coder_of

    device = device_of(options)
    how = Sampling(max_tokens, temperature, top_p, secrets.randbits(32) if seed is None else seed)
    with request_of(options, tokenizer="open", holdout=False, computes="peer generate") as request:
        model = load_model(sources, request, say)
        coder = coder_of(model.run)
        begin = prompt_tokens(model.run, coder, prompt)
        stream, text, tokens = TextStream(coder, begin), "", 0
        for token in sample(model, device, begin, how):
            text, tokens = text + _print_part(stream.add(token), as_json), tokens + 1
        text += _print_part(stream.end(), as_json)
    if not as_json:
        click.echo()
        return
    report = {"prompt": prompt, "text": text, "tokens": tokens, "seed": how.seed}
    click.echo(json.dumps(report | {"run_id": model.run.run_id.hex(), "round": model.round}))


def _print_part(part: str, as_json: bool) -> str:
    """Print a part of the text at once, unless the output is JSON. Return the part."""
    if part and not as_json:
        shown = "\t".join(map(harmless, part.split("\t"))) if sys.stdout.isatty() else part
        click.echo(shown, nl=False)
    return part
