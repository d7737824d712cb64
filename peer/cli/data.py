"""`peer data`: convert texts to token shards."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from peer.cli.options import as_json
from peer.cli.printing import echo
from peer.cli.reading import EXCLUDE, SOURCES, YES, bar, found_sources
from peer.errors import for_shell
from peer.installation import using_extra

if TYPE_CHECKING:
    from collections.abc import Iterable

    from peer.data.build import Built
    from peer.data.sources import Sources
    from peer.run.files.token_index import ShardEntry


@click.group("data")
def command() -> None:
    """Make the training data of a run from texts."""


@command.command("build", epilog="Example: peer data build texts/ --tokenizer tokenizer.json --out data/")
@SOURCES
@click.option("--tokenizer", required=True, type=click.Path(path_type=Path, dir_okay=False), help="A tokenizer.json.")
@click.option("--out", required=True, type=click.Path(path_type=Path), help="A new folder for the shards.")
@click.option(
    "--holdout-one-in",
    type=click.IntRange(2, 10**6),
    help="Hold one in so many documents out of training.  [default: 100, fewer for few documents]",
)
@click.option("--end-token", help="The tokenizer's token that ends a document.  [default: found by its usual names]")
@EXCLUDE
@YES
@as_json
def build(
    sources: tuple[Path, ...],
    tokenizer: Path,
    out: Path,
    holdout_one_in: int | None,
    end_token: str | None,
    exclude: tuple[str, ...],
    yes: bool,
    as_json: bool,
) -> None:
    """Convert folders of text, JSONL (plain, .gz, .zst) and parquet (field or column `text`) to token shards.

    A text file, a line of JSONL and a row of parquet are one document each. Run the same command again to continue an
    interrupted build."""
    with using_extra("data"):
        from peer.data.build import build as build_data
        from peer.data.encoding import open_tokenizer

        encoder = open_tokenizer(tokenizer, end_token)
        for what in encoder.turned_off:
            echo(f"{what} of the tokenizer is off, so that a text always has the same tokens", err=True)
        found = found_sources(sources, yes, (out, tokenizer), exclude)
        with bar("tokens") as told:
            built = build_data(found, encoder, out, holdout_one_in, told)
    report = _report(built, found, out, encoder.end_text)
    if as_json:
        echo(json.dumps(report, indent=2))
        return
    for part in ("train", "holdout"):
        sums = report[part]
        echo(f"{part:8} {sums['tokens']:>15,} tokens  {sums['documents']:>11,} documents  {sums['shards']:,} shards")
    echo(f"hold-out: 1 in {built.holdout_one_in} ({built.reason})")
    if built.empty:
        echo(f"left out: {built.empty:,} empty documents")
    echo(f"wrote {out}: vocabulary {built.index.vocab_size:,} as {built.index.dtype}, end token {encoder.end_text}")
    made = for_shell(out / "tokenizer.json")
    echo(f"next: peer manifest new run.toml --tokenizer {made} --data {for_shell(out)}")


def _report(built: Built, sources: Sources, out: Path, end_text: str) -> dict[str, Any]:
    index = built.index
    seen = sources.survey
    return {
        "out": str(out),
        "index": {"digest": built.index_digest, "size": built.index_nbytes},
        "tokenizer": {"digest": index.tokenizer, "vocab_size": index.vocab_size},
        "end_token": {"id": index.end_token, "text": end_text},
        "dtype": index.dtype,
        "train": _sums(index.train),
        "holdout": _sums(index.holdout),
        "holdout_one_in": {"value": built.holdout_one_in, "reason": built.reason},
        "empty_documents": built.empty,
        "resumed": built.resumed,
        "sources": {
            "files": len(seen.files),
            "linked": sources.linked,
            "nbytes": seen.nbytes,
            "skipped_binary": seen.skipped_binary,
            "skipped_hidden": seen.skipped_hidden,
            "skipped_others": {what: count for what, count in seen.others.items() if count},
            "suspicious": seen.suspicious,
        },
    }


def _sums(entries: Iterable[ShardEntry]) -> dict[str, int]:
    rows = [dataclasses.asdict(entry) for entry in entries]
    return {
        "shards": len(rows),
        **{name: sum(row[name] for row in rows) for name in ("tokens", "documents", "text_bytes")},
    }
