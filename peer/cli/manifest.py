"""`peer manifest`: make, check, sign and show manifests."""

from __future__ import annotations

import json
from pathlib import Path

import click

from peer import identity as identities
from peer.cli.options import as_json, home, identity_path
from peer.identity import Identity
from peer.run.home import Home
from peer.run.manifest import (
    Manifest,
    SignedManifest,
    load_signed,
    parse_manifest,
    read_text,
    sign_file,
    signature_path,
    write_new,
)
from peer.run.presets import describe, resolve

FILE = click.argument("file", type=click.Path(path_type=Path), default=Path("run.toml"))


@click.group("manifest")
def command() -> None:
    """Make, check, sign and show manifests. A manifest is the run: its exact bytes are hashed into the run's id."""


@command.command("new", epilog="Example: peer manifest new run.toml")
@FILE
@home
@identity_path
def new(file: Path, home: Path, identity_path: Path | None) -> None:
    """Write a commented manifest of the tiny built-in run, with your key as operator, and sign it."""
    signed = write_new(file, _key(home, identity_path))
    click.echo(f"wrote {file} and {signature_path(file)}: run {signed.run_id.hex()[:16]}")
    click.echo(f"next: peer bootstrap {file}    (after an edit first: peer manifest sign {file})")


@command.command("check", epilog="Example: peer manifest check run.toml")
@FILE
def check(file: Path) -> None:
    """Say whether a manifest can be run: every finding at once, and whether it is signed."""
    parse_manifest(read_text(file).encode())
    load_signed(file)
    click.echo(f"{file}: ok, signed by its operator")


@command.command("sign", epilog="Example: peer manifest sign run.toml")
@FILE
@home
@identity_path
def sign(file: Path, home: Path, identity_path: Path | None) -> None:
    """Sign a manifest with your key, which it must name as operator."""
    signed = sign_file(file, _key(home, identity_path))
    click.echo(f"signed {file}: run {signed.run_id.hex()[:16]}")


@command.command("show", epilog="Example: peer manifest show run.toml --json")
@FILE
@as_json
def show(file: Path, as_json: bool) -> None:
    """Tell what a manifest means: run id, method, size of the model, bytes on the wire."""
    raw = read_text(file).encode()
    manifest = parse_manifest(raw)
    report = {"run_id": SignedManifest(raw, b"").run_id.hex(), "name": manifest.name, "operator": manifest.operator}
    parameters = count_parameters(manifest)
    rows = describe(resolve(manifest.sync), parameters)
    if as_json:
        click.echo(json.dumps({**report, "parameters": parameters, "method": dict(rows)}, indent=2))
        return
    for name, value in [*report.items(), ("parameters", f"{parameters:,}"), *rows]:
        click.echo(f"{name.replace('_', ' '):>18}  {value}")


def count_parameters(manifest: Manifest) -> int:
    """Of the llama kind, from its configuration alone."""
    m = manifest.model
    head = m.hidden_size // m.num_attention_heads
    attention = m.hidden_size * m.hidden_size * 2 + 2 * m.hidden_size * head * m.num_key_value_heads
    layer = attention + 3 * m.hidden_size * m.intermediate_size + 2 * m.hidden_size
    return m.vocab_size * m.hidden_size + m.num_hidden_layers * layer + m.hidden_size


def _key(home: Path, identity_path: Path | None) -> Identity:
    return identities.load_or_create(identity_path or Home(home).identity)
