"""`peer tokenizer`: train a tokenizer on texts."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import click

from peer.cli.options import as_json
from peer.cli.printing import echo
from peer.cli.reading import EXCLUDE, SOURCES, YES, bar, found_sources
from peer.errors import for_shell
from peer.installation import using_extra


@click.group("tokenizer")
def command() -> None:
    """Make tokenizers from texts."""


@command.command("train", epilog="Example: peer tokenizer train texts/ --vocab 32000 --out tokenizer.json")
@SOURCES
@click.option("--vocab", required=True, type=click.IntRange(257, 2**20), help="Tokens of the vocabulary, at most.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="The file to write. It must be new.")
@EXCLUDE
@YES
@as_json
def train(sources: tuple[Path, ...], vocab: int, out: Path, exclude: tuple[str, ...], yes: bool, as_json: bool) -> None:
    """Train a byte-level BPE tokenizer with the end token <|endoftext|>. The sources are the same as for `peer data
    build`.

    The same texts give the same file."""
    with using_extra("data"):
        from peer.data.train_tokenizer import train_tokenizer

        found = found_sources(sources, yes, (out,), exclude)
        with bar("texts") as told:
            trained = train_tokenizer(found, vocab, out, told)
    if as_json:
        echo(json.dumps({"out": str(out), **dataclasses.asdict(trained)}, indent=2))
        return
    echo(f"wrote {out}: {trained.vocab_size:,} tokens from {trained.documents:,} documents")
    if trained.vocab_size < vocab:
        echo(f"{vocab:,} were asked for, and the texts have no more pairs")
    echo(f"next: peer data build {' '.join(map(for_shell, sources))} --tokenizer {for_shell(out)} --out data")
