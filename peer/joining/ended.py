"""Checks whether a run is over: before a peer fetches anything, and once more before it trains.

With a clock in seconds the answer follows from the own clock, the signed start and the manifest's number of rounds
alone. With a clock in steps it is read from the record of an operator's node: the operator's key, or a node that the
ticket or a delegation names."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

from peer.discovery.multiaddr import split
from peer.errors import RunEnded, for_shell
from peer.joining.clock import clock_from
from peer.joining.context import JoinContext
from peer.joining.statements import catch_up
from peer.membership.statement_sync import StatementSync
from peer.protocol.messages import PeerId, PeerRecord, Status
from peer.protocol.schedule import TOGETHER_S, RoundClock
from peer.run.manifest import Manifest
from peer.run.statements.files import known_start
from peer.run.statements.log import StatementLog

FIRST_LOOK_S = 3.0
"""Seconds for which an empty directory is awaited. Afterwards the join goes on without this check."""
LOOK_S = 0.25
"""Seconds between two reads of an empty directory."""


def operator_nodes(manifest: Manifest, addresses: Iterable[str]) -> frozenset[PeerId]:
    """Return the nodes that may declare the run over: the operator's key, and the nodes in the ticket's addresses."""
    named = (split(address)[1] for address in addresses)
    return frozenset(PeerId(peer) for peer in (manifest.operator, *named) if peer)


async def ensure_not_ended(
    context: JoinContext, manifest: Manifest, addresses: Iterable[str], statements: StatementSync
) -> None:
    """Fetch the run's statements, and raise RunEnded when the run is over.

    `addresses`: those of the ticket. Waits for the first record for at most `FIRST_LOOK_S`."""
    nodes = operator_nodes(manifest, addresses)
    if manifest.start or statements.log.start_is_final:
        _ensure_time_left(context, manifest, statements.log)
    records = await _first_look(context)
    await catch_up(context, statements, nodes)
    if manifest.sync.clock == "seconds":
        try:
            _ensure_time_left(context, manifest, statements.log)
        except RunEnded:  # the signer of the start may have lost its delegation, which another peer may know
            await catch_up(context, statements, nodes, everybody=True)
            _ensure_time_left(context, manifest, statements.log)
        return
    nodes = statements.log.nodes(context.clock.now(), nodes)
    if any(_says_ended(record, manifest.rounds) for record in records if record.peer_id in nodes):
        raise _ended(manifest)


def ensure_round_left(manifest: Manifest, rounds: RoundClock, state_round: int, now: float) -> None:
    """Raise RunEnded when a peer whose state is of round `state_round` cannot do any further round. `now`: run time,
    seconds since the epoch."""
    total = manifest.rounds
    if rounds.kind == "steps":
        if state_round >= total:
            raise _ended(manifest)
        return
    if not rounds.start or now - rounds.start < TOGETHER_S or rounds.first_round_for(now) < total:
        return
    if now >= rounds.due_at(total - 1):
        raise _ended(manifest)
    raise RunEnded(
        f"run {manifest.name} ends after {total} rounds, and a newcomer can do none of them any more",
        why="A newcomer works for one sync_every before its first exchange, and the run is over by then.",
    )


def farewell(manifest: Manifest, home: Path) -> str:
    """Return the sentence that a volunteer sees when its peer has done all rounds."""
    return f"{ended_sentence(manifest)}; get the model with: peer export {for_shell(home)} OUT --format hf"


def ended_sentence(manifest: Manifest) -> str:
    """Return the sentence that says that a run is over."""
    return f"run {manifest.name} ended after {manifest.rounds} rounds"


def _ended(manifest: Manifest) -> RunEnded:
    return RunEnded(ended_sentence(manifest))


def _ensure_time_left(context: JoinContext, manifest: Manifest, log: StatementLog) -> None:
    """Raise RunEnded when the clock in seconds shows that the run is over.

    The error of the own clock is known from the nodes that were dialled. Until then the check assumes the largest error
    in favour of going on."""
    if manifest.sync.clock != "seconds":
        return
    start = known_start(log, None if context.folder is None else context.folder.path)
    offset = context.directory.contact().clock_offset_s
    now = context.clock.now() + (-manifest.limits.max_clock_offset_s if offset is None else offset)
    ensure_round_left(manifest, clock_from(manifest, start), 0, now)


def _says_ended(record: PeerRecord, total: int) -> bool:
    """Return whether an operator's node announces in its record that the run is over, or that most peers did the last
    round."""
    return record.status is Status.ENDED or (record.status is Status.SERVING and record.round >= total)


async def _first_look(context: JoinContext) -> list[PeerRecord]:
    """Read the directory until it shows a peer or `FIRST_LOOK_S` have passed."""
    until = asyncio.get_running_loop().time() + FIRST_LOOK_S
    while not (records := await context.directory.peers()) and asyncio.get_running_loop().time() < until:
        await context.clock.sleep(LOOK_S)
    return list(records.values())
