"""`peer doctor`: find what prevents this machine from taking part in a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from peer.cli.durations import Duration
from peer.cli.guest_options import guest
from peer.cli.join import MICRO_BATCH
from peer.cli.options import (
    announce_maddrs,
    as_json,
    cache_disk,
    home,
    host_maddrs,
    identity_path,
    initial_peers,
    invitation,
    lan,
    max_download,
    max_upload,
    port_mapping,
    upload_budget,
)
from peer.cli.percentages import Percentage
from peer.cli.printing import echo

WAIT = "Longest wait for an answer of the run, as 20s or 2m."

if TYPE_CHECKING:
    from peer.guest.options import GuestOptions
    from peer.run.admission.invitation import Invitation


@click.command("doctor", epilog="Example: peer doctor TICKET --json | jq -r .verdict")
@click.argument("ticket_or_manifest", metavar="[TICKET|run.toml]", required=False)
@home
@identity_path
@initial_peers
@invitation
@host_maddrs
@announce_maddrs
@lan
@port_mapping
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of the exchange service. 0: any free one.")
@click.option("--data", "data_dir", type=click.Path(path_type=Path), help="Your texts, for runs with data kind `text`.")
@max_upload
@max_download
@upload_budget
@click.option("--threads", type=click.IntRange(1, 1024), help="Threads of the trainer. All but one core by default.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--precision", type=click.Choice(["auto", "fp32", "bf16"]), default="auto", show_default=True)
@guest
@click.option("--speed", type=Percentage(), default="100%", metavar="PERCENT", help="Share of the time to train.")
@click.option("--keep-checkpoints", type=click.IntRange(1, 100), default=3, show_default=True)
@click.option("--micro-batch", type=click.IntRange(1, 2**16), help=MICRO_BATCH)
@cache_disk
@click.option("--wait", "wait_s", type=Duration(plain=True), default="20s", show_default=True, help=WAIT)
@as_json
def command(
    ticket_or_manifest: str | None,
    home: Path,
    identity_path: Path | None,
    initial_peers: tuple[str, ...],
    invitation: Invitation | None,
    host_maddrs: tuple[str, ...],
    announce_maddrs: tuple[str, ...],
    lan: bool,
    port_mapping: bool,
    port: int,
    data_dir: Path | None,
    max_upload: float | None,
    max_download: float | None,
    daily_upload: int | None,
    monthly_upload: int | None,
    threads: int | None,
    device: str,
    precision: str,
    guest: GuestOptions,
    speed: float,
    keep_checkpoints: int,
    micro_batch: int | None,
    cache_disk: int,
    wait_s: float,
    as_json: bool,
) -> None:
    """Find everything that prevents this machine from taking part in the run of a TICKET, and predict its role there.

    Give the options that you would give `peer join`. Without a TICKET only the machine is examined. Nothing is written
    into the home, and a running daemon is not disturbed. The exit code is 0 if the machine is ready, 71 with warnings,
    and 70 if it is not ready."""
    echo("looking at this machine", err=as_json)
    from peer.cli.installed import check_torch
    from peer.cli.run import run_daemon
    from peer.guest.options import machine_cores, threads_for
    from peer.node.doctor.examine import Examination, examined
    from peer.node.doctor.report import closing, in_json, line_of
    from peer.node.doctor.request import NO_RUN, NamedRun
    from peer.protocol.policy.upload_quota import UploadLimits
    from peer.run.options import PeerOptions, any_hosts

    options = PeerOptions(
        home=home,
        identity_path=identity_path,
        initial_peers=initial_peers,
        invitation=invitation,
        host_maddrs=host_maddrs or any_hosts(),
        announce_maddrs=announce_maddrs,
        lan=lan,
        port_mapping=port_mapping,
        port=port,
        max_upload=max_upload,
        max_download=max_download,
        uploads=UploadLimits(daily_upload, monthly_upload),
        run_id=NO_RUN,
        data_dir=data_dir,
        threads=threads_for(guest.cpu, threads, machine_cores()),
        device=device,
        precision=precision,
        speed=speed,
        guest=guest,
        checkpoints_kept=keep_checkpoints,
        micro_batch=micro_batch,
        cache_disk=cache_disk,
        wait_s=wait_s,
    )
    named = NamedRun.of(ticket_or_manifest)
    examination = Examination(
        options=named.within(options),
        with_run=named.ticket is not None,
        torch_check=check_torch,
        on_finding=lambda finding: echo(line_of(finding), err=as_json),
        on_step=lambda text: echo(f"  …  {text}", err=True),
    )
    examination.add(*named.findings)

    def print_result() -> None:
        findings, prediction = examination.findings, examination.prediction
        echo(in_json(findings, prediction) if as_json else closing(findings, prediction, examination.with_run))

    run_daemon(examined(examination, print_result))
