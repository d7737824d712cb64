"""What a daemon learns before it trains: the signed manifest, the operator's amendments, when the rounds began."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Sequence

from peer.daemon.amendments import Amendments, check
from peer.daemon.joining import obtain_manifest
from peer.daemon.memory import activation_bytes, free_bytes
from peer.daemon.node import Node
from peer.daemon.options import JoinOptions
from peer.errors import ExchangeError, ManifestError
from peer.observe import events
from peer.observe.waits import Waits
from peer.protocol.messages import PeerId, PeerRecord
from peer.protocol.roundclock import RoundClock
from peer.protocol.ruling import describe
from peer.run.amendments import Chain
from peer.run.home import RunFolder, write_whole
from peer.run.manifest import Manifest, SignedManifest, keep, load_signed
from peer.run.presets import resolve
from peer.trainer.process import TrainerConfig

HELLO_S = 5.0
GREETED, GREETED_S = 16, 1.0
"""Before training, so many peers are greeted at once for their clocks; who has not answered by then is waited for only
while nobody has."""
CATCH_UP_FROM = 4
"""Before training, so many peers are asked for the operator's amendments."""


def kept_manifest(node: Node) -> SignedManifest | None:
    """The one fetched at an earlier start, if it is still whole."""
    try:
        kept = load_signed(node.folder.manifest)
    except ManifestError:
        return None
    return kept if kept.run_id == node.run_id else None


async def fetch_manifest(node: Node, wait_s: float, waits: Waits) -> SignedManifest:
    """From any peer, and kept. Raises as `obtain_manifest`."""
    signed = await obtain_manifest(
        node.run_id, node.directory, node.transport, node.clock, node.say, wait_s, waits.tell
    )
    waits.end()
    keep(node.folder.manifest, signed)
    node.say(f"manifest: run {signed.manifest.name!r}, signed by {signed.manifest.operator}")
    return signed


async def first_amendments(
    node: Node, manifest: Manifest, emit: Callable[[events.Event], None], banned: Callable[[PeerId], str]
) -> Amendments:
    """What is kept and what the others hold. `banned` tells why a peer is kept out now. Raises JoinRefused when that is
    us."""
    chain = Chain(node.run_id, manifest.operator)
    kept, in_steps = node.folder.path / "amendments.jsonl", manifest.sync.clock == "steps"
    held = Amendments(chain, kept, emit, in_steps=in_steps)
    held.told = lambda amendment: node.say(describe(amendment))
    node.donor.amendments = held
    node.transport.obey(banned)
    records = list((await node.directory.peers()).values())
    able = [record for record in records if record.reachable and record.endpoints]
    for record in able[:CATCH_UP_FROM]:
        await held.ask(node.transport, record)
    check(held.ruling(max((record.round for record in records), default=0)), node.me)
    return held


async def round_clock(node: Node, manifest: Manifest) -> RoundClock:
    """The clock; in seconds its start comes from the manifest or from what others announce, and the own clock is
    corrected by a Hello to each of them first."""
    sync = manifest.sync
    start = manifest.start or _kept_start(node.folder)
    records = list((await node.directory.peers()).values())
    for offset in await _offsets(node, random.sample(records, min(GREETED, len(records)))):
        node.clock.observe(offset)  # after the last answer: a Hello under way would count a correction twice
    start = start or next((record.run_start for record in records if record.run_start), 0.0)
    return RoundClock(sync.clock, sync.sync_every, resolve(sync).fragments, start)


async def _offsets(node: Node, records: Sequence[PeerRecord]) -> list[float]:
    """What the own clock is off by, as each of those says who answer in time."""
    found: list[float] = []

    async def greet(record: PeerRecord) -> None:
        with contextlib.suppress(ExchangeError):  # one that cannot be greeted tells nothing about our clock
            found.append((await node.transport.hello(record, HELLO_S)).clock_offset_s)

    greeting = [asyncio.create_task(greet(record)) for record in records]
    try:
        for wait_s in (GREETED_S, HELLO_S):
            if greeting and not found:
                await asyncio.wait(greeting, timeout=wait_s)
        return found
    finally:
        for task in greeting:
            task.cancel()
        await asyncio.gather(*greeting, return_exceptions=True)


def _kept_start(folder: RunFolder) -> float:
    try:
        return float((folder.path / "run_start").read_text())
    except (OSError, ValueError):
        return 0.0


def keep_start(folder: RunFolder, start: float) -> None:
    """For the next start, when nobody may be there to say. Raises HomeUnusable."""
    write_whole(folder.path / "run_start", repr(start).encode())


def trainer_config(options: JoinOptions, me: PeerId, manifest: Manifest) -> TrainerConfig:
    """What the trainer is told: the manifest's sections and this volunteer's choices."""
    return TrainerConfig.of(
        manifest,
        me,
        data_dir=str(options.data_dir) if options.data_dir else None,
        threads=options.threads,
        device=options.device,
        speed=options.speed,
        step_seconds=options.step_seconds,
        micro_batch=options.micro_batch,
        activation_bytes=activation_bytes(manifest, free_bytes()),
        trail=options.trail,
    )
