"""`peer bench`: measure the speed of codecs, exchange and trainer on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import click

from peer.cli.options import as_json
from peer.cli.printing import echo
from peer.errors import UsageError


@click.group("bench", epilog="Example: peer bench codec --codec e3m0 --mb 64")
def command() -> None:
    """Measure codecs, the exchange and the trainer on this machine. Nothing leaves it."""


@command.command(epilog="Example: peer bench codec --codec int8 --mb 64 --json")
@click.option("--codec", default="int8", show_default=True, help="fp32, fp16, bf16, int8, int4, e3m0 or topk.")
@click.option("--mb", type=float, default=64, show_default=True, help="Million bytes of fp32.")
@as_json
def codec(codec: str, mb: float, as_json: bool) -> None:
    """Measure one codec on one thread: GB of fp32 a second, with memcpy to compare."""
    from peer.lab.bench.codecs import measure

    rates = measure(codec, mb)
    if as_json:
        echo(json.dumps(rates))
        return
    for what in ("encode", "decode", "axpy", "memcpy"):
        rate = rates[f"{what}_gbs"]
        echo(f"{what:8} {rate:6.2f} GB/s  {rate / rates['memcpy_gbs']:5.2f} x memcpy")
    echo(f"implementation: {rates['implementation']} ({rates['reason']})")


@command.command(epilog="Example: peer bench exchange --codec e3m0 --mb 256 --against gloo --json")
@click.option("--codec", default="e3m0", show_default=True, help="fp32, fp16, bf16, int8, int4, e3m0 or topk.")
@click.option("--mb", type=float, default=256, show_default=True, help="Million bytes of fp32.")
@click.option("--against", default="", help="gloo: compare with its all-reduce of the same fp32.")
@click.option("--repeats", type=click.IntRange(1, 1000), default=5, show_default=True)
@as_json
def exchange(codec: str, mb: float, against: str, repeats: int, as_json: bool) -> None:
    """Measure a swap between two processes: both directions at once, with TLS, decoding and accumulating."""
    from peer.lab.bench.exchange import measure

    found = measure(codec, mb, against, repeats)
    if as_json:
        echo(json.dumps(found))
        return
    echo(f"{codec}, {mb:g} MB each way: {found['seconds']:.3f} s, {found['cpu_seconds']:.3f} CPU s")
    if against:
        echo(f"gloo, fp32 in the clear: {found['gloo_seconds']:.3f} s, {found['gloo_cpu_seconds']:.3f} CPU s")
        echo(f"ratio: {found['seconds'] / found['gloo_seconds']:.2f}")


@command.command(epilog="Example: peer bench trainer --manifest run.toml --steps 100 --json")
@click.option(
    "--manifest", type=click.Path(path_type=Path), help="Manifest of the run. The built-in tiny one by default."
)
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a manifest value.")
@click.option("--steps", type=int, default=50, show_default=True, help="Inner steps measured, after warming up.")
@click.option("--threads", type=click.IntRange(1, 1024), default=1, show_default=True, help="Of the trainer.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--data", help="The folder of texts, for data of kind text.")
@as_json
def trainer(
    manifest: Path | None,
    settings: tuple[str, ...],
    steps: int,
    threads: int,
    device: str,
    data: str | None,
    as_json: bool,
) -> None:
    """Measure how fast this machine trains a run's model, in a child process like the daemon's trainer.

    The files that a --manifest names are expected beside it, as for `peer bootstrap`. Data that would have to be
    fetched is replaced by Python's standard library."""
    from peer.joining.artifacts import operator_files
    from peer.lab.bench.trainer import measure
    from peer.run.manifest import default_text, derive, read_text
    from peer.run.schema import parse_manifest

    text = default_text() if manifest is None else read_text(manifest)
    parsed = parse_manifest(derive(text, settings).encode())
    if data is not None and parsed.data.kind != "text":
        raise UsageError(f"this run brings its own data ({parsed.data.kind}): --data is not read", "Leave --data out.")
    files = None if manifest is None else operator_files(manifest, parsed, None, lambda line: None)[0]
    found = measure(parsed, steps, threads=threads, device=device, data_dir=data, files=files)
    if as_json:
        echo(json.dumps(found))
        return
    echo(f"{found['parameters']:,} parameters on {found['device']}, {found['threads']} threads")
    echo(f"{found['tokens_per_s']:,.0f} tokens/s, {1000 * found['step_s']:.1f} ms a step")
    if found["utilization"] is not None:
        echo(f"{found['utilization']:.0%} of what matrix products reach here")
    if found["cores"] is not None:
        echo(f"{found['cores']:.2f} cores used")
