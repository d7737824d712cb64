"""`peer join`: take part in a run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from peer import __version__
from peer.cli.durations import Duration
from peer.cli.guest_options import guest
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
    max_download,
    max_upload,
    metrics,
    port_mapping,
    relay,
    step_seconds,
    upload_budget,
)
from peer.cli.percentages import Percentage
from peer.cli.web import PagedCommand, log_to, open_pages, web
from peer.clock.phases import PhaseTimer

if TYPE_CHECKING:
    from peer.clock.quiet_hours import QuietHours
    from peer.guest.options import GuestOptions
    from peer.node.page import DaemonPages
    from peer.run.admission.invitation import Invitation
    from peer.run.options import PeerOptions

MICRO_BATCH = "Windows that go through the model at once. By default as many as fit into memory."
WAIT = "Wait so long (5m) for an answer from the run, or for a donor, before giving up with exit code 30 or 41."


def _quiet(context: click.Context, parameter: click.Parameter, value: str | None) -> QuietHours | None:
    """Parse the value of `--quiet-hours`. Raises UsageError."""
    if value is None:
        return None
    from peer.clock.quiet_hours import QuietHours

    return QuietHours.parse(value)


@click.command("join", cls=PagedCommand, epilog="Example: peer join peer-ticket --data ~/texts --max-upload 1MB")
@click.argument("ticket_or_manifest", metavar="TICKET|run.toml", nargs=-1, required=True)
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
@click.option("--data", "data_dir", type=click.Path(path_type=Path), help="Your texts, for runs with data kind `text`.")
@max_upload
@max_download
@upload_budget
@click.option("--threads", type=click.IntRange(1, 1024), help="Threads of the trainer. All but one core by default.")
@click.option("--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True)
@click.option("--precision", type=click.Choice(["auto", "fp32", "bf16"]), default="auto", show_default=True)
@guest
@click.option(
    "--speed", type=Percentage(), default="100%", metavar="PERCENT", help="Share of the time to train, e.g. 50%."
)
@step_seconds
@click.option(
    "--checkpoint-every",
    type=Duration(plain=True),
    default="1m",
    help="Least time between two checkpoints.",
    show_default=True,
)
@click.option(
    "--keep-checkpoints",
    type=click.IntRange(1, 100),
    default=3,
    show_default=True,
    help="Number of checkpoints to keep.",
)
@click.option(
    "--quiet-hours", callback=_quiet, metavar="HH:MM-HH:MM", help="Pause every day, local time, e.g. 22:00-07:00."
)
@click.option("--resume", is_flag=True, help="End a pause of this peer by `peer pause`.")
@click.option("--trail", is_flag=True, help="Log which batches were trained on to trail.log in the run's folder.")
@click.option(
    "--summary/--no-summary",
    default=True,
    show_default=True,
    help="Tell the operator's node every minute or two what this peer does: see `peer help privacy`.",
)
@click.option("--yes", is_flag=True, help="Agree to what the run takes without being asked.")
@click.option("--wait", "wait_s", type=Duration(plain=True), default="2m", show_default=True, help=WAIT)
@click.option("--min-peers", type=click.IntRange(1, 10000), default=1, help="Begin when so many peers are ready.")
@click.option("--micro-batch", type=click.IntRange(1, 2**16), help=MICRO_BATCH)
@cache_disk
@metrics
@web
@log_to
@leave_on_eof
@click.option("--attach", type=click.IntRange(3), hidden=True, help="Socket of a program with a loop of its own.")
@click.option("--plain", is_flag=True, help="Plain lines instead of the live view of a terminal.")
def command(
    ticket_or_manifest: tuple[str, ...],
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
    data_dir: Path | None,
    max_upload: int | None,
    max_download: int | None,
    daily_upload: int | None,
    monthly_upload: int | None,
    threads: int | None,
    device: str,
    precision: str,
    guest: GuestOptions,
    speed: float,
    step_seconds: float,
    checkpoint_every: float,
    keep_checkpoints: int,
    quiet_hours: QuietHours | None,
    resume: bool,
    trail: bool,
    summary: bool,
    yes: bool,
    wait_s: float,
    min_peers: int,
    micro_batch: int | None,
    cache_disk: int,
    metrics_port: int | None,
    metrics_host: str,
    web: str | None,
    web_names: tuple[str, ...],
    log: tuple[str, ...],
    attach: int | None,
    plain: bool,
) -> None:
    """Take part in the run of a TICKET.

    TICKET may be @FILE, for the ticket in that file, or a manifest file together with --initial-peers. You may also
    paste the complete line `peer join …` that somebody sent you.

    The peer finds the others, fetches the model's state, trains, and exchanges with one random partner in each round.
    It runs until the run ends or you press Ctrl+C, which finishes the current exchange and saves. The next start
    continues from there."""
    phase_timer = PhaseTimer()
    from peer.cli.run import say

    say(f"peer {__version__}: reading the ticket")  # printed before the slow imports
    from peer.cli.installed import check_torch
    from peer.cli.run import run_daemon
    from peer.guest.options import machine_cores, threads_for
    from peer.joining.preflight import check_start, check_volunteer
    from peer.protocol.messages import RunId
    from peer.protocol.policy.upload_quota import UploadLimits
    from peer.run.manifest import load_signed
    from peer.run.options import PeerOptions, any_hosts
    from peer.run.packages import check_packages
    from peer.run.ticket import Ticket, text_after_ticket, ticket_summary

    named = " ".join(ticket_or_manifest)
    signed = load_signed(Path(named)) if Path(named).suffix == ".toml" else None
    if signed is not None:
        check_packages(signed.manifest)
    known = Ticket.named(named) if signed is None else Ticket(signed.run_id, ())
    if left := text_after_ticket(named):
        say(f"not taken from the line that was pasted: {left}. Options go behind the ticket, without quotes around all")
    options = PeerOptions(
        home=home,
        identity_path=identity_path,
        initial_peers=(*initial_peers, *known.addresses),
        invitation=invitation,
        host_maddrs=host_maddrs or any_hosts(),
        announce_maddrs=announce_maddrs,
        lan=lan,
        port_mapping=port_mapping,
        relay=relay,
        port=port,
        max_upload=max_upload,
        max_download=max_download,
        uploads=UploadLimits(daily_upload, monthly_upload),
        run_id=RunId(known.run_id),
        manifest=signed,
        data_dir=data_dir,
        threads=threads_for(guest.cpu, threads, machine_cores()),
        device=device,
        precision=precision,
        speed=speed,
        step_seconds=step_seconds,
        checkpoint_every_s=checkpoint_every,
        checkpoints_kept=keep_checkpoints,
        quiet_hours=quiet_hours,
        guest=guest,
        resume=resume,
        trail=trail,
        summary=summary,
        agreed=yes,
        wait_s=wait_s,
        min_peers=min_peers,
        cache_disk=cache_disk,
        micro_batch=micro_batch,
        attached=attach is not None,
    )
    pages = open_pages(web, web_names, metrics_host, metrics_port, log)
    if attach is not None:  # no checks here: the daemon repeats them and sends errors to the program
        run_daemon(_serve_loop(options, attach, phase_timer, pages))
    check_volunteer(options)
    check_torch()
    check_start(options, options.run_id)
    say(f"{ticket_summary(known)}: loading torch and the network takes some seconds")
    run_daemon(_take_part(options, plain, phase_timer, pages))


async def _serve_loop(options: PeerOptions, descriptor: int, phase_timer: PhaseTimer, pages: DaemonPages) -> int:
    """Run the peer of a program with its own training loop, and return the exit code. An error that ends the peer is
    sent to the program."""
    from peer.errors import PeerError
    from peer.node.display import AttachedLines, LoggedDisplay
    from peer.node.peer import run_peer
    from peer.run.home import Home
    from peer.trainer.subprocess import TrainerSubprocess

    program = await TrainerSubprocess.adopt(descriptor)
    own = Home(options.home)
    try:
        code = await run_peer(options, LoggedDisplay(AttachedLines(program)), program, phase_timer, pages)
        program.post("over", code=code)
        return code
    except PeerError as error:
        program.post("failed", error=type(error).__name__, found=error.found, fix=error.fix, why=error.why)
        raise
    finally:
        await program.end()
        own.discard_empty(options.run_id)


async def _take_part(options: PeerOptions, plain: bool, phase_timer: PhaseTimer, pages: DaemonPages) -> int:
    """Run the peer and return its exit code. The trainer process loads torch while this process imports the daemon."""
    import asyncio

    from peer.cli.installed import import_daemon, loading_torch
    from peer.cli.run import display
    from peer.run.home import Home
    from peer.trainer.prestart import early_trainer

    own = Home(options.home)
    try:
        async with early_trainer(own.run(options.run_id).path, options.threads) as early:
            with loading_torch():
                await asyncio.to_thread(import_daemon)
            from peer.node.peer import run_peer

            return await run_peer(options, display(plain), early, phase_timer, pages)
    finally:
        own.discard_empty(options.run_id)
