"""`peer bootstrap`: the operator's node."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from peer import __version__
from peer.cli.durations import Duration
from peer.cli.options import (
    announce_maddrs,
    cache_disk,
    home,
    host_maddrs,
    identity_path,
    initial_peers,
    invitation,
    lan,
    leave_on_eof,
    max_upload,
    metrics,
    port_mapping,
    relay,
)
from peer.cli.web import PagedCommand, log_to, open_pages, web
from peer.protocol.swarm.buckets import SPLIT

if TYPE_CHECKING:
    from peer.run.admission.invitation import Invitation


@click.command(
    "bootstrap",
    cls=PagedCommand,
    epilog="Example: peer bootstrap run.toml --announce-maddrs /ip4/203.0.113.7/tcp/4810",
)
@click.argument("manifest", type=click.Path(path_type=Path), metavar="run.toml")
@home
@identity_path
@initial_peers
@invitation
@host_maddrs
@announce_maddrs
@lan
@port_mapping
@relay
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of the exchange service. 0: any free one.")
@max_upload
@click.option("--ticket-file", type=click.Path(path_type=Path), help="Also write the ticket here.")
@click.option(
    "--min-peers",
    type=click.IntRange(0, SPLIT),
    default=1,
    show_default=True,
    help="Round 0 begins when so many are ready. A node sees no more for certain in a larger swarm.",
)
@cache_disk
@click.option(
    "--data",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Give joiners the token shards in this folder of `peer data build`.",
)
@metrics
@web
@log_to
@leave_on_eof
@click.option(
    "--state",
    type=click.Path(path_type=Path, exists=True, file_okay=False),
    help="Give joiners this checkpoint folder of a peer instead of the first state. See `peer manifest amend`.",
)
@click.option(
    "--keep-latest/--no-keep-latest",
    default=True,
    show_default=True,
    help="Keep the run's newest state in the home, and give it to joiners.",
)
@click.option(
    "--keep-every",
    type=Duration(plain=True),
    default="10m",
    show_default=True,
    help="Least time between two kept states. One is always kept at the end of the run.",
)
@click.option(
    "--check/--no-check",
    default=True,
    show_default=True,
    help="Evaluate a state in a process of its own before it is kept.",
)
def command(
    manifest: Path,
    home: Path,
    identity_path: Path | None,
    initial_peers: tuple[str, ...],
    invitation: Invitation | None,
    host_maddrs: tuple[str, ...],
    announce_maddrs: tuple[str, ...],
    lan: bool,
    port_mapping: bool,
    relay: int | None,
    port: int,
    max_upload: int | None,
    ticket_file: Path | None,
    min_peers: int,
    cache_disk: int,
    data: Path | None,
    metrics_port: int | None,
    metrics_host: str,
    web: str | None,
    web_names: tuple[str, ...],
    log: tuple[str, ...],
    state: Path | None,
    keep_latest: bool,
    keep_every: float,
    check: bool,
) -> None:
    """Run the operator's node of a run: serve its signed manifest and first state, and print the ticket for
    volunteers."""
    from peer.cli.run import run_daemon, say

    say(f"peer {__version__}: loading torch and the network takes some seconds")
    from peer.cli.installed import check_torch, loading_torch
    from peer.joining.preflight import check_start
    from peer.run.manifest import load_signed
    from peer.run.options import NodeOptions, any_hosts
    from peer.run.packages import check_packages

    pages = open_pages(web, web_names, metrics_host, metrics_port, log)
    signed = load_signed(manifest)
    check_packages(signed.manifest)
    options = NodeOptions(
        home=home,
        identity_path=identity_path,
        initial_peers=initial_peers,
        invitation=invitation,
        host_maddrs=host_maddrs or any_hosts(),
        announce_maddrs=announce_maddrs,
        lan=lan,
        port_mapping=port_mapping,
        relay=relay,
        port=port,
        max_upload=max_upload,
        cache_disk=cache_disk,
    )
    check_torch()
    check_start(options, signed.run_id)
    with loading_torch():
        from peer.node.operator.bootstrap import OperatorOptions, run_bootstrap
    operator_options = OperatorOptions(
        ticket_file=ticket_file,
        min_peers=min_peers,
        state=state,
        data=data,
        keep_latest=keep_latest,
        keep_every_s=keep_every,
        check=check,
        pages=pages,
    )
    run_daemon(run_bootstrap(options, manifest, operator_options, say))
