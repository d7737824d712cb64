"""Gets the run's manifest: from the home, or from any peer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from peer.codes import AnyCode, Code
from peer.errors import ClockWrong, ExchangeError, JoinRefused, ManifestError, PartnerRefused, PeerError
from peer.joining.context import JoinContext
from peer.joining.messages import check_clock, unreachable, waiting_reason
from peer.observe.progress import WaitProgress, ignore_progress
from peer.ports.transport import StateCalls
from peer.protocol.messages import PeerId, PeerRecord, RunId
from peer.run.home import RunFolder
from peer.run.manifest import SignedManifest, load_signed, store_signed

CALL_TIMEOUT_S = 10.0
ASKED_AT_ONCE = 4
"""Number of peers that are asked in parallel. The first valid answer is taken."""
RETRY_S = 1.0
NOBODY_YET = "nobody of this run is in the directory yet"

WITH_INVITATION = "Get an invitation for your key (peer id show) from the operator, and give it: --invitation @FILE"
FINAL_REFUSALS: dict[AnyCode, str] = {
    Code.WIRE_VERSION: "Update this program: peer help install update",
    Code.BANNED: "Ask the operator of the run.",
    Code.CLOCK: ClockWrong.fix,
    Code.UNINVITED: WITH_INVITATION,
    Code.INVITATION_EXPIRED: WITH_INVITATION,
    Code.INVITATION_REVOKED: "Ask the operator of the run.",
    Code.INVITATION_FOREIGN: WITH_INVITATION,
    Code.INVITATION_ALTERED: WITH_INVITATION,
}
"""Refusals that a retry does not change, with the fix of each."""


async def obtain_manifest(
    context: JoinContext, wait_s: float, progress: WaitProgress = ignore_progress
) -> SignedManifest:
    """Ask the peers in the directory for the manifest until one gives it. Any peer may be asked, because the bytes must
    hash to the run id.

    Raises SwarmUnreachable when no manifest came for `wait_s` seconds, JoinRefused (ClockWrong for a wrong clock) when
    every peer refuses for a final reason."""
    run_id, directory, transport = context.run_id, context.directory, context.transport
    deadline = asyncio.get_running_loop().time() + wait_s
    said = problem = ""
    progress("reaching the run", 0, wait_s, "s")
    while asyncio.get_running_loop().time() < deadline:
        records = list((await directory.peers()).values())
        failed = dict[PeerId, BaseException]()
        for at in range(0, len(records), ASKED_AT_ONCE):
            signed = await _first_manifest(run_id, records[at : at + ASKED_AT_ONCE], transport, failed)
            if signed is not None:
                return signed
        problem = next((f"{peer}: {error}" for peer, error in failed.items()), NOBODY_YET)
        refusals = [e for e in failed.values() if isinstance(e, PartnerRefused) and e.code in FINAL_REFUSALS]
        if refusals and len(refusals) == len(records):
            raise _refusal(refusals[0])
        check_clock(directory.contact())
        waiting = waiting_reason(directory.contact(), problem)
        if waiting != said:
            context.say(f"waiting for the manifest, at most {wait_s:.0f} s: {waiting}")
            said = waiting
        await context.clock.sleep(RETRY_S)
    raise unreachable(directory.contact(), run_id, problem, wait_s)


def _refusal(refusal: PartnerRefused) -> PeerError:
    kind = ClockWrong if refusal.code == Code.CLOCK else JoinRefused
    return kind(f"every peer of the run refuses this one: {refusal.reason}", FINAL_REFUSALS[refusal.code])


async def _first_manifest(
    run_id: RunId, records: Sequence[PeerRecord], transport: StateCalls, failed: dict[PeerId, BaseException]
) -> SignedManifest | None:
    """Ask these peers in parallel, and return the first valid manifest, so that one dead peer does not delay a joiner.
    Errors of the others are stored in `failed`."""
    asked = {asyncio.create_task(_manifest_of(run_id, record, transport)): record.peer_id for record in records}
    try:
        for answer in asyncio.as_completed(asked):
            with contextlib.suppress(ExchangeError, ManifestError):
                return await answer
    finally:
        for task, peer in asked.items():
            task.cancel()
            await asyncio.wait({task})
            if not task.cancelled() and (error := task.exception()):
                failed[peer] = error
    return None


async def _manifest_of(run_id: RunId, record: PeerRecord, transport: StateCalls) -> SignedManifest:
    """Fetch the manifest from one peer. Raises ExchangeError, or ManifestError when it is of another run or not signed
    by its operator."""
    signed = SignedManifest(*await transport.fetch_manifest(record, CALL_TIMEOUT_S))
    if signed.run_id != run_id:
        raise ManifestError("gave the manifest of another run")
    signed.verify()
    return signed


def stored_manifest(folder: RunFolder, run_id: RunId) -> SignedManifest | None:
    """Read the manifest that an earlier start stored. None: there is no valid one."""
    try:
        kept = load_signed(folder.manifest)
    except ManifestError:
        return None
    return kept if kept.run_id == run_id else None


async def find_manifest(
    context: JoinContext, wait_s: float, progress: WaitProgress = ignore_progress, given: SignedManifest | None = None
) -> SignedManifest:
    """Return the run's manifest: the given one, the stored one, or one fetched from a peer, which is then stored.
    Raises as `obtain_manifest`."""
    kept = None if context.folder is None else stored_manifest(context.folder, context.run_id)
    if (found := given or kept) is not None:
        return found
    signed = await obtain_manifest(context, wait_s, progress)
    if context.folder is not None:
        store_signed(context.folder.manifest, signed)
    context.say(f"manifest: run {signed.manifest.name!r}, signed by {signed.manifest.operator}")
    return signed
