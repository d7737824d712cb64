"""Invitations: statements, signed by the operator or a delegated node, that admit a peer to a run until a given time.

    base32( magic, 4 bytes | version, 1 | run id, 32 | public key, 32 | expiry, 8 | signature, 64 | checksum, 4 )

The signature covers domain, run id, public key and expiry, so that every peer can verify it with the manifest and the
delegations. The magic makes every invitation begin with `peerin`. An invitation is not secret, because it admits only
the key that it names."""

from __future__ import annotations

import base64
import hashlib
import re
from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

from peer.codes import Code
from peer.errors import TicketError
from peer.identity import Identity, peer_id_of, public_key_of, verify
from peer.protocol.messages import LATEST, MAX_ROUND, PeerId
from peer.run.pasted import MOST_STARTS, characters_of, given_text, token_at
from peer.run.statements.log import StatementLog

DOMAIN = b"peer invitation v1"
BYTES = 1 + 32 + 32 + 8 + 64
"""Bytes of an invitation on the wire: without magic and checksum."""
LATEST_DAY = 253_402_300_799
"""Last second since the epoch that can be formatted as a date."""
MAX_KNOWN = 4096
"""Largest number of invited peers that are remembered."""
_MAGIC = base64.b32decode("PEERINVT")[:4]
_VERSION = 1
_CHECKSUM = 4
_CHARACTERS = characters_of(len(_MAGIC) + BYTES + _CHECKSUM)
_START = re.compile("peerin", re.ASCII | re.IGNORECASE)
MOST_CHARACTERS = 4096
"""Most characters of a text that is searched for an invitation."""
_FIX = "Copy the complete invitation again, or ask the operator for a new one."
ASK = "Ask the operator of the run for an invitation: peer ticket invite KEY."

Refused = tuple[Code, str]
"""Error code, and sentence for a person."""


@dataclass(frozen=True, slots=True)
class Invitation:
    """One invitation, not verified yet."""

    run_id: bytes
    peer: PeerId
    expires: int
    """Seconds since the epoch."""
    signature: bytes

    @classmethod
    def make(cls, operator: Identity, run_id: bytes, peer: str, expires: int) -> Invitation:
        """Sign an invitation. `expires`: seconds since the epoch. Raises ValueError for an invalid peer id."""
        body = run_id + public_key_of(peer) + expires.to_bytes(8, "big")
        return cls(run_id, PeerId(peer), expires, operator.sign(DOMAIN, body))

    @property
    def raw(self) -> bytes:
        """The bytes that are sent in a Hello."""
        return bytes([_VERSION]) + self._body() + self.signature

    def _body(self) -> bytes:
        return self.run_id + public_key_of(self.peer) + self.expires.to_bytes(8, "big")

    @classmethod
    def parse(cls, raw: bytes) -> Invitation | None:
        """Parse the bytes of a Hello. None: they are no invitation."""
        if len(raw) != BYTES or raw[0] != _VERSION:
            return None
        expires = int.from_bytes(raw[65:73], "big")
        return cls(raw[1:33], PeerId(peer_id_of(raw[33:65])), expires, raw[73:]) if expires <= LATEST else None

    def encode(self) -> str:
        """Encode as text, for people."""
        body = _MAGIC + self.raw
        return base64.b32encode(body + _checksum(body)).decode().rstrip("=").lower()

    @classmethod
    def named(cls, argument: str) -> Invitation:
        """Read the argument of a command: an invitation, or `@FILE` with one in it. Raises TicketError."""
        text = given_text(argument, MOST_CHARACTERS, "an invitation")
        starts = islice(_START.finditer(text), MOST_STARTS)
        words = [token_at(text, start.start(), lambda word: _CHARACTERS).token for start in starts]
        for word in words or [""]:
            if (found := cls._decoded(word)) is not None:
                return found
        raise TicketError("this is no invitation, or it is mistyped or truncated", _FIX)

    @classmethod
    def _decoded(cls, word: str) -> Invitation | None:
        try:
            raw = base64.b32decode(word.upper() + "=" * (-len(word) % 8))
        except ValueError:
            raw = b""
        body, checksum = raw[:-_CHECKSUM], raw[-_CHECKSUM:]
        whole = body[: len(_MAGIC)] == _MAGIC and _checksum(body) == checksum
        found = cls.parse(body[len(_MAGIC) :]) if whole else None
        return found if found is not None and found.encode() == word else None

    def signed_by(self, signers: Iterable[str]) -> str | None:
        """Return which of these keys signed the invitation. None: none of them did."""
        found = (key for key in signers if verify(public_key_of(key), DOMAIN, self._body(), self.signature))
        return next(found, None)

    def refusal(self, run_id: bytes, signers: Iterable[str], peer: str, now: float) -> Refused | None:
        """Return why the invitation does not admit this peer to this run: code and sentence. None: it does. `signers`:
        keys that may invite. `now`: seconds since the epoch."""
        if self.run_id != run_id:
            return Code.INVITATION_FOREIGN, f"the invitation of {peer} is for another run, {self.run_id.hex()[:16]}"
        if self.peer != peer:
            return Code.INVITATION_FOREIGN, f"the invitation that {peer} shows was given to {self.peer}"
        if self.signed_by(signers) is None:
            return Code.INVITATION_ALTERED, f"the invitation of {peer} is altered, or the operator never signed it"
        if now >= self.expires:
            return Code.INVITATION_EXPIRED, f"the invitation of {peer} expired on {day_of(self.expires)}. {ASK}"
        return None


def day_of(expires: int) -> str:
    """Format a second since the epoch for a person, in UTC. Later times are shown as the end of year 9999."""
    return datetime.fromtimestamp(min(expires, LATEST_DAY), UTC).strftime("%Y-%m-%d %H:%M UTC")


def _checksum(body: bytes) -> bytes:
    return hashlib.sha256(b"peer invitation\0" + body).digest()[:_CHECKSUM]


class InvitedPeers:
    """The rule by which a peer admits others, and the set of peers that showed a valid invitation."""

    def __init__(
        self,
        log: StatementLog,
        now: Callable[[], float],
        *,
        required: bool,
        exempt: Container[PeerId] = (),
    ) -> None:
        """`log`: gives the nodes that may invite, and the revoked invitations. `required`: whether the run admits only
        invited peers. `exempt`: the operator's nodes named by the ticket, which need no invitation."""
        self._log = log
        self._now = now
        self.required = required
        self._exempt = exempt
        self._known: OrderedDict[PeerId, tuple[int, str]] = OrderedDict()
        """Per peer, when its invitation expires (seconds since the epoch), and the key that signed it."""

    def refusal(self, peer: PeerId, shown: bytes) -> Refused | None:
        """Return why a peer with this Hello is not admitted: code and sentence. None: it is. `shown`: the bytes of its
        invitation, empty for none."""
        named = {self._log.operator, peer} if peer in self._exempt else {self._log.operator}
        if peer in self._log.nodes(self._now(), named):
            return None
        found = self._refusal(peer, shown)
        return found if self.required else None

    def _refusal(self, peer: PeerId, shown: bytes) -> Refused | None:
        if not shown:
            return Code.UNINVITED, f"this run admits invited peers only, and {peer} shows no invitation. {ASK}"
        invitation = Invitation.parse(shown)
        if invitation is None:
            return Code.INVITATION_ALTERED, f"the invitation of {peer} cannot be read"
        now = self._now()
        signers = self._log.signers("invitations", now)
        if found := invitation.refusal(self._log.run_id, signers, peer, now):
            return found
        if (why := self._revoked.get(peer)) is not None:
            return Code.INVITATION_REVOKED, f"the operator took back the invitation of {peer}: {why}"
        signer = invitation.signed_by(signers)
        assert signer is not None, "`refusal` has checked it"
        self._known[peer] = invitation.expires, signer
        self._known.move_to_end(peer)
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return None

    @property
    def _revoked(self) -> Mapping[PeerId, str]:
        return self._log.policy(MAX_ROUND).revoked

    def __contains__(self, peer: object) -> bool:
        """Return whether this peer showed an invitation that is still valid, and whose signer may still invite."""
        if not isinstance(peer, str) or (known := self._known.get(PeerId(peer))) is None:
            return False
        (expires, signer), now = known, self._now()
        return expires > now and self._log.may(signer, "invitations", now) and peer not in self._revoked
