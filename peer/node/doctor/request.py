"""Reads the run that the user named for an examination."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from peer.errors import PeerError
from peer.node.doctor.finding import DoctorFinding, failure
from peer.protocol.messages import RunId
from peer.run.manifest import SignedManifest, load_signed
from peer.run.options import PeerOptions
from peer.run.ticket import Ticket

NO_RUN = RunId(bytes(32))


@dataclass(frozen=True, slots=True)
class NamedRun:
    """The run that the user named. `ticket` None: no run was named, or its ticket cannot be read, which `findings`
    reports."""

    ticket: Ticket | None = None
    manifest: SignedManifest | None = None
    findings: tuple[DoctorFinding, ...] = ()

    @classmethod
    def of(cls, text: str | None) -> NamedRun:
        """Read a ticket, `@FILE`, or a manifest file. Never raises: an error becomes a finding."""
        if text is None:
            return cls()
        try:
            if Path(text).suffix == ".toml":
                signed = load_signed(Path(text))
                return cls(Ticket(signed.run_id, ()), signed)
            return cls(Ticket.named(text))
        except PeerError as error:
            return cls(findings=(failure("ticket", error),))

    def within(self, options: PeerOptions) -> PeerOptions:
        """Return the user's options extended by this run."""
        if self.ticket is None:
            return options
        peers = (*options.initial_peers, *self.ticket.addresses)
        return replace(options, run_id=RunId(self.ticket.run_id), initial_peers=peers, manifest=self.manifest)
