"""From a ticket to a complete state: the manifest from any peer, `outer_params` from an own checkpoint or a donor."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from peer.daemon.interfaces import Clock, Directory, Transport
from peer.daemon.waiting import check_clock, unreachable, waiting_for
from peer.errors import ClockWrong, ExchangeError, JoinRefused, ManifestError, PartnerRefused, PeerError, StateError
from peer.observe.waits import Progress, untold
from peer.outer.state import OuterState
from peer.protocol.layout import Layout
from peer.protocol.messages import PeerRecord, RunId, Status
from peer.run.manifest import SignedManifest
from peer.state.checkpoint import CheckpointStore
from peer.state.snapshot import fetch_state

RETRY_S = 1.0
STATE_WAIT_S = 600.0
CALL_TIMEOUT_S = 10.0
FETCHING = "fetching the state"

FINAL_REFUSALS = {
    "wire_version": "Update this program: pip install -U peer-swarm",
    "banned": "Ask the operator of the run.",
    "clock": ClockWrong.fix,
}
"""Refusals that asking again does not change, and what does."""

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class FirstState:
    """The state a peer begins with, and how it came by it."""

    outer: OuterState
    round: int
    why: str
    """For a person: resumed or fetched, and from where."""
    donor: str = ""
    nbytes: int = 0
    seconds: float = 0.0
    resume: Path | None = None
    """The checkpoint's folder, for the trainer."""
    founded: bytes | None = None
    """Of a checkpoint: digest of the state the run had last been refounded on; None: not a checkpoint."""
    checkpoint_tokens: int = -1
    """The trainer's token counter when the checkpoint was written; -1 without one."""


async def obtain_manifest(
    run_id: RunId,
    directory: Directory,
    transport: Transport,
    clock: Clock,
    say: Say,
    wait_s: float,
    progress: Progress = untold,
) -> SignedManifest:
    """Ask everybody in the directory, again and again. The bytes must hash to the run id, so that nobody can lie.

    Raises SwarmUnreachable when nobody answered for `wait_s` seconds, JoinRefused (ClockWrong, if it is the clock) when
    everybody refuses for good."""
    deadline = asyncio.get_running_loop().time() + wait_s
    said = problem = ""
    progress("reaching the run", 0, wait_s, "s")
    while asyncio.get_running_loop().time() < deadline:
        records = await directory.peers()
        problem, refusals = "nobody of this run is in the directory yet", dict[str, PartnerRefused]()
        for record in records:
            try:
                raw, signature = await transport.fetch_manifest(record, CALL_TIMEOUT_S)
                signed = SignedManifest(raw, signature)
                if signed.run_id != run_id:
                    problem = f"{record.peer_id} gave the manifest of another run"
                    continue
                signed.verify()
            except (ExchangeError, ManifestError) as error:
                if isinstance(error, PartnerRefused) and error.code in FINAL_REFUSALS:
                    refusals[record.peer_id] = error
                problem = f"{record.peer_id}: {error}"
                continue
            return signed
        if refusals and len(refusals) == len(records):
            refusal = next(iter(refusals.values()))
            raise _refused(refusal)
        check_clock(directory.contact())
        waiting = waiting_for(directory.contact(), problem)
        if waiting != said:
            say(f"waiting for the manifest, at most {wait_s:.0f} s: {waiting}")
            said = waiting
        await clock.sleep(RETRY_S)
    raise unreachable(directory.contact(), run_id, problem, wait_s)


def _refused(refusal: PartnerRefused) -> PeerError:
    kind = ClockWrong if refusal.code == "clock" else JoinRefused
    return kind(f"every peer of the run refuses this one: {refusal.reason}", FINAL_REFUSALS[refusal.code])


async def obtain_state(
    run_id: RunId,
    layout: Layout,
    checkpoints: CheckpointStore,
    directory: Directory,
    transport: Transport,
    clock: Clock,
    say: Say,
    progress: Progress = untold,
    rng: random.Random | None = None,
) -> FirstState:
    """An own checkpoint if there is a valid one, else the state of a donor; waits for one, saying so. A newcomer
    prefers peers that train, the furthest first: the bootstrap node holds only the very first state.

    Raises StateError when there was no donor for ten minutes."""
    resumed = _from_checkpoint(run_id, layout, checkpoints, say)
    if resumed is not None:
        return resumed
    deadline = asyncio.get_running_loop().time() + STATE_WAIT_S
    said = ""
    while asyncio.get_running_loop().time() < deadline:
        problem = "no peer with a complete state is in the directory yet"
        waited = STATE_WAIT_S - (deadline - asyncio.get_running_loop().time())
        progress("waiting for a donor", waited, STATE_WAIT_S, "s")
        for donor in _donors(await directory.peers(), rng or random.Random()):
            began = clock.now()
            try:
                progress(FETCHING, 0, 4 * layout.elements, "bytes")
                params, round_ = await fetch_state(
                    transport, donor, layout, progress=lambda done, total: progress(FETCHING, done, total, "bytes")
                )
            except ExchangeError as error:
                problem = f"{donor.peer_id}: {error}"
                continue
            why = f"fetched from {donor.peer_id} ({donor.status}, round {round_})"
            outer = OuterState.fresh(layout, params)
            return FirstState(outer, round_, why, donor.peer_id, params.nbytes, clock.now() - began)
        check_clock(directory.contact())
        waiting = waiting_for(directory.contact(), problem)
        if waiting != said:
            say(f"waiting for a donor, at most {STATE_WAIT_S / 60:.0f} minutes: {waiting}")
            said = waiting
        await clock.sleep(RETRY_S)
    raise StateError(
        f"no donor gave a state within {STATE_WAIT_S / 60:.0f} minutes: {said}",
        "At least the bootstrap node has to be up until the first peer has the state. Try again later.",
    )


def _donors(records: list[PeerRecord], rng: random.Random) -> list[PeerRecord]:
    shuffled = rng.sample(records, len(records))
    complete = (Status.TRAINING, Status.PAUSED, Status.FINISHED, Status.SERVING)
    able = [record for record in shuffled if record.status in complete]
    return sorted(able, key=lambda r: (not r.reachable, r.status is Status.SERVING, -r.round))


def _from_checkpoint(run_id: RunId, layout: Layout, checkpoints: CheckpointStore, say: Say) -> FirstState | None:
    checkpoint, skipped = checkpoints.latest(run_id, layout.digest())
    for reason in skipped:
        say(f"checkpoint skipped: {reason}")
    if checkpoint is None:
        return None
    params, momentum = checkpoint.load()
    outer = OuterState(layout, params.to(torch.float32), momentum.to(torch.float32))
    facts = checkpoint.facts
    round_, tokens = int(facts["round"]), int(facts["tokens"])
    why = f"resumed from own {checkpoint.folder.name} of round {round_}"
    try:
        founded = bytes.fromhex(str(facts.get("founded", "")))
    except ValueError:
        founded = b""
    return FirstState(outer, round_, why, resume=checkpoint.folder, founded=founded, checkpoint_tokens=tokens)
