"""A volunteer's own invitation, and the rule by which its peer admits others."""

from __future__ import annotations

from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path

from peer.errors import JoinRefused, TicketError
from peer.observe.status.value import AdmissionStatus
from peer.protocol.messages import PeerId, RunId
from peer.run.admission.invitation import ASK, Invitation, InvitedPeers, day_of
from peer.run.home import write_whole
from peer.run.manifest import Manifest
from peer.run.statements.log import StatementLog

FILE = "invitation"
"""File in the run's folder that stores the invitation."""


def own_invitation(folder: Path, given: Invitation | None, run_id: RunId, me: PeerId, now: float) -> Invitation | None:
    """Store the given invitation, or return the one stored at an earlier start, even if it has expired. None: there is
    none. `now`: seconds since the epoch.

    Raises TicketError for a given invitation that is for another run or key, or that has expired."""
    path = folder / FILE
    if given is None:
        return _kept(path, run_id, me)
    if given.run_id != run_id or given.peer != me:
        raise TicketError(
            f"the invitation is for {given.peer} in run {given.run_id.hex()[:16]}. This is {me} in {run_id.hex()[:16]}",
            "An operator invites the key that `peer id show` tells, to one run. Use that --home or --identity-path.",
        )
    if now >= given.expires:
        raise TicketError(f"the invitation expired on {day_of(given.expires)}", ASK)
    write_whole(path, given.encode().encode() + b"\n")
    return given


def _kept(path: Path, run_id: RunId, me: PeerId) -> Invitation | None:
    if not path.exists():
        return None
    try:
        kept = Invitation.named(f"@{path}")
    except TicketError:
        return None  # as without one: other peers then refuse with the reason
    return kept if kept.run_id == run_id and kept.peer == me else None


def invited_peers(
    manifest: Manifest, log: StatementLog, now: Callable[[], float], nodes: Container[PeerId]
) -> InvitedPeers:
    """Return the admission rule of this run. `nodes`: the operator's nodes, which need no invitation."""
    return InvitedPeers(log, now, required=manifest.admission.kind == "invited", exempt=nodes)


@dataclass(frozen=True, slots=True)
class OwnAdmission:
    """This peer's own admission to a run that may require invitations."""

    invited_peers: InvitedPeers
    me: PeerId
    invitation: Invitation | None

    def ensure(self) -> None:
        """Raise JoinRefused when other peers would refuse this one, as far as this peer can determine that itself."""
        if (
            found := self.invited_peers.refusal(self.me, b"" if self.invitation is None else self.invitation.raw)
        ) is not None:
            raise JoinRefused(found[1], "Give a valid one: peer join TICKET --invitation @FILE")

    def report(self, proven: int, left_out: int) -> AdmissionStatus:
        """Return the admission for `peer status`. See `Reputation.strangers` for the two numbers."""
        until = None if self.invitation is None else day_of(self.invitation.expires)
        return AdmissionStatus("invited" if self.invited_peers.required else "open", until, proven, left_out)
