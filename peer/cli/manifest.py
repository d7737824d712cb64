"""`peer manifest`: make, check, sign, show and amend manifests, and delegate."""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import click

from peer.cli.amend import command as amend
from peer.cli.delegate import command as delegate
from peer.cli.options import as_json, home, identity_path, settings, signing_key
from peer.cli.printing import echo
from peer.errors import ManifestError, for_shell
from peer.methods.cautions import cautions
from peer.methods.method import Method
from peer.run.costs import Cost, cost_of
from peer.run.description import (
    OPEN_CUSTOM,
    cost_rows,
    growth_rows,
    growths,
    memory_rows,
    method_rows,
    optimizer_rows,
    round_rows,
)
from peer.run.files.artifact_folder import folder_of, tensors_beside
from peer.run.manifest import (
    Manifest,
    SignedManifest,
    default_text,
    derive,
    ensure_new,
    load_signed,
    parse_manifest,
    read_raw,
    sign_file,
    signature_path,
    write_new,
)
from peer.run.memory import MemoryNeed, memory_need
from peer.run.resolve import resolve, sources
from peer.run.schema import overridden
from peer.run.sections import CustomSection, SyncSection
from peer.run.sync.common_data import unchecked_reason
from peer.run.sync.pretrained import pretrained_rate_warning
from peer.run.sync.vocabulary import unused_vocabulary

THERE = click.Path(path_type=Path, exists=True)
FILE = click.argument("file", type=click.Path(path_type=Path), default=Path("run.toml"))


@click.group("manifest")
def command() -> None:
    """Make, check, sign, show and amend manifests. A run's id is the hash of its manifest's exact bytes."""


@command.command("new", epilog="Example: peer manifest new run.toml --set sync_every=300 --set name=my-run")
@FILE
@click.option("--model", type=THERE, help="A model's config.json, or a folder with it and *.safetensors to begin from.")
@click.option("--tokenizer", type=THERE, help="A tokenizer.json.")
@click.option("--data", type=THERE, help="A folder that `peer data build` wrote.")
@settings
@home
@identity_path
def new(
    file: Path,
    model: Path | None,
    tokenizer: Path | None,
    data: Path | None,
    preset: str | None,
    settings: tuple[str, ...],
    home: Path,
    identity_path: Path | None,
) -> None:
    """Write and sign a manifest of the tiny built-in run, with your key as operator. If the home has no key, one is
    made; a file named by --identity-path has to exist. Without options the manifest contains explanatory comments. With
    --model, --tokenizer or --data, the files that it names are copied to a folder beside it, where `peer bootstrap`
    looks for them. An existing file is never overwritten."""
    if preset is not None:
        settings = (*settings, f"sync.preset={preset}")
    ensure_new(file)  # refuse before a key is made
    if not (model or tokenizer or data):
        derive(default_text(), settings)
    else:
        overridden(default_text(), settings)  # checks names only: which values fit depends on the files
        from peer.run.packages import check_hf

        wanted = {"transformers": (model, "--model"), "tokenizers": (tokenizer or data, "a tokenizer")}
        check_hf({name: what for name, (given, what) in wanted.items() if given})
    operator = signing_key(home, identity_path, make=True)
    if model or tokenizer or data:
        from peer.node.new_run import make_run  # slow to import

        say = functools.partial(echo, err=True)
        signed = make_run(file, operator, settings, say, model=model, tokenizer=tokenizer, data=data)
        echo(f"wrote {folder_of(file)}: the files that the run names")
    else:
        signed = write_new(file, operator, settings)
    _print_cautions(signed.manifest)
    echo(f"wrote {file} and {signature_path(file)}: run {signed.run_id.hex()[:16]}, operator {operator.peer_id}")
    shards = f" --data {for_shell(data)}" if data else ""
    echo(
        f"next: peer bootstrap {for_shell(file)}{shards}    (after an edit first: peer manifest sign {for_shell(file)})"
    )


@command.command("check", epilog="Example: peer manifest check run.toml --json")
@FILE
@as_json
def check(file: Path, as_json: bool) -> None:
    """Check a manifest completely and report every problem, and whether its operator signed it. Also warn of choices
    that may be worse than training without any exchange."""
    signed = load_signed(file)
    tensors_beside(file, signed.manifest)
    if as_json:
        report = {"run_id": signed.run_id.hex(), "operator": signed.manifest.operator}
        echo(json.dumps({**report, "cautions": _cautions(signed.manifest)}, indent=2))
    else:
        echo(f"{file}: ok, signed by its operator")
        _print_cautions(signed.manifest)


@command.command("sign", epilog="Example: peer manifest sign run.toml")
@FILE
@home
@identity_path
def sign(file: Path, home: Path, identity_path: Path | None) -> None:
    """Sign a manifest with your key. The manifest must name this key as operator."""
    signed = sign_file(file, signing_key(home, identity_path))
    echo(f"signed {file}: run {signed.run_id.hex()[:16]}")


@command.command("show", epilog="Example: peer manifest show run.toml --json")
@FILE
@as_json
def show(file: Path, as_json: bool) -> None:
    """Show what a manifest means: run id, every choice of its method with its source, and the method's costs.

    The costs are bytes on the wire, the rate they need, and memory, for this model."""
    raw = read_raw(file)
    manifest = parse_manifest(raw, str(file))
    method = resolve(manifest.sync)
    tensors = tensors_beside(file, manifest)
    cost, need = cost_of(manifest.model, method, tensors), memory_need(manifest, tensors)
    report = {
        "run_id": SignedManifest(raw, b"").run_id.hex(),
        "name": manifest.name,
        "operator": manifest.operator,
        "signature": _signature(file),
    }
    if as_json:
        told = _method_as_json(manifest.sync, method, cost, need)
        told |= {
            "optimizer": manifest.optimizer.model_dump(),
            "rounds": manifest.rounds,
            "cautions": _cautions(manifest),
        }
        echo(json.dumps({**report, **told}, indent=2))
        return
    rows = [(name, value, "") for name, value in report.items()]
    told_rows = [*method_rows(manifest.sync), *round_rows(method, manifest.rounds, manifest.train.total_rounds)]
    told_rows += growth_rows(method)
    told_rows += [*optimizer_rows(manifest, tensors), *cost_rows(method, cost), *memory_rows(cost, need)]
    for name, value, remark in [*rows, *told_rows]:
        echo(f"{name.replace('_', ' '):>22}  {value if not remark else f'{value:<18}{remark}'}")
    _print_cautions(manifest)


command.add_command(amend)
command.add_command(delegate)


def _method_as_json(sync: SyncSection, method: Method, cost: Cost, need: MemoryNeed) -> dict[str, Any]:
    return {
        "parameters": cost.parameters,
        "bytes_per_round": max(cost.fragment_bytes),
        "socket_bytes_per_round": max(cost.socket_bytes),
        "preset": sync.preset,
        "method": dataclasses.asdict(method),
        "sources": {name: source for name, _, source in sources(sync)},
        **growths(method),
        "cost": {
            **dataclasses.asdict(cost),
            "bytes_per_sync": cost.bytes_per_sync,
            "socket_bytes": cost.socket_bytes,
            "memory_bytes": cost.memory_bytes,
        },
        "memory": {"daemon": need.daemon, "arena": need.shared, "trainer": need.trainer},
    }


def _cautions(manifest: Manifest) -> dict[str, str]:
    method = resolve(manifest.sync)
    found = {f"sync.{key}": why for key, why in cautions(method, manifest.rounds)}
    if why := unused_vocabulary(manifest.model, manifest.tokenizer):
        found["model.vocab_size"] = why
    custom = isinstance(manifest.model, CustomSection)  # the users' program chooses the optimizer
    if not custom and (why := pretrained_rate_warning(manifest.init, manifest.optimizer)):
        found["optimizer.lr"] = why
    if custom and manifest.admission.kind == "open":
        found["admission.kind"] = OPEN_CUSTOM
    return found | ({"sync.acceptance": why} if (why := unchecked_reason(method, manifest.data)) else {})


def _print_cautions(manifest: Manifest) -> None:
    for key, why in _cautions(manifest).items():
        echo(f"caution: {key}: {why}", err=True)


def _signature(file: Path) -> str:
    try:
        load_signed(file)
    except ManifestError as error:
        return f"not valid: {error.found}"
    return "good"
