"""Detects that two processes run with the same key at the same time, by signed claims of their starts.

A copy of a home contains its key, and two machines then answer as one peer. Each process draws a random nonce when it
starts, and names it in its record and in each Hello. In a Hello both sides also show a signed claim: the nonce, the
time of the start, and the nonces of other starts of the same key that the process has seen.

A claim that names *our* nonce was signed after our start, because no process can know a nonce before it is drawn. So
our nonce is the challenge and the claim is the answer. Any other claim or record may be a replay, for example of our
own process before a restart, and proves nothing. A replayed claim that names our nonce proves the same as before, and
our own claim, if sent back to us, names no other start.

The two processes need not reach each other. A peer that knows two claims of one key shows each claim to the process of
the other (`KeyStarts.other_of`). That peer need not be trusted: it can only pass on claims or withhold them.

Of two starts, the later one stops. Both processes compare the same two claims, so they agree on which one that is,
whatever their clocks show. (If the clocks differ by more than the time between the starts, it is the wrong one of the
two, but still only one.)"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from peer.identity import Identity, verify
from peer.protocol.messages import LATEST, START_NONCE_BYTES, RunId
from peer.v1 import exchange_pb2 as pb

DOMAIN = b"peer start v1"
MAX_OTHERS = 4
"""Most other starts that a claim names, and most claims of one key that are stored for its other processes."""
MAX_KEYS = 1024
"""Most keys of other peers whose claims are stored. The key seen longest ago is dropped first."""
MAX_CLAIM_BYTES = 256
"""Largest claim in bytes. One with `MAX_OTHERS` nonces has about 220."""


@dataclass(frozen=True, slots=True)
class StartClaim:
    """A claim of one start whose signature is verified."""

    nonce: bytes
    began_at: float
    """Time of the start, in seconds since the epoch by the machine's own clock."""
    others: frozenset[bytes]
    """Nonces of other starts of the key that the process has seen, at most `MAX_OTHERS`."""
    raw: bytes
    """The signed bytes of the claim."""

    def is_before(self, other: StartClaim) -> bool:
        """Return whether this start counts as the earlier one. Both processes get the same answer."""
        return (self.began_at, self.nonce) < (other.began_at, other.nonce)


def seal_start(identity: Identity, run_id: RunId, nonce: bytes, began_at: float, others: tuple[bytes, ...]) -> bytes:
    """Sign a claim. Return a serialized `SignedStart`."""
    body = pb.StartBody(run_id=run_id, nonce=nonce, began_at=began_at, others=others).SerializeToString()
    raw: bytes = pb.SignedStart(body=body, signature=identity.sign(DOMAIN, body)).SerializeToString()
    return raw


def open_start(raw: bytes, run_id: RunId, public_key: bytes) -> StartClaim | None:
    """Return the claim in `raw`. None: it is malformed, of another run, or not signed by this key."""
    if not raw or len(raw) > MAX_CLAIM_BYTES:
        return None
    try:
        signed = pb.SignedStart.FromString(raw)
        body = pb.StartBody.FromString(signed.body)
    except DecodeError:
        return None
    nonces = [body.nonce, *body.others]
    formed = len(body.others) <= MAX_OTHERS and all(len(nonce) == START_NONCE_BYTES for nonce in nonces)
    if not formed or not 0 <= body.began_at <= LATEST or body.run_id != run_id:
        return None
    if not verify(public_key, DOMAIN, signed.body, signed.signature):
        return None
    return StartClaim(body.nonce, body.began_at, frozenset(body.others), raw)


class KeyStarts:
    """The start of this process, and the claims of other starts that it has seen. Does no I/O and never waits."""

    def __init__(
        self,
        identity: Identity,
        run_id: RunId,
        began_at: float,
        found: Callable[[StartClaim], None] = lambda rival: None,
    ) -> None:
        """`began_at`: seconds since the epoch. `found`: called once for each other start of our key that is proven to
        run at the same time."""
        self._identity, self._run_id = identity, run_id
        self.nonce = secrets.token_bytes(START_NONCE_BYTES)
        self._found = found
        self._own = self._signed(began_at, ())
        self._shown: OrderedDict[bytes, None] = OrderedDict()
        """Nonces of other starts of our key that were shown to us, the latest last."""
        self._proven: set[bytes] = set()
        self.earlier: StartClaim | None = None
        """An earlier start of our key that runs at the same time, so that this process has to stop. None: there is
        none."""
        self._met: OrderedDict[bytes, OrderedDict[bytes, StartClaim]] = OrderedDict()
        """Public key -> nonce -> claim of other peers; the latest last."""

    def _signed(self, began_at: float, others: tuple[bytes, ...]) -> StartClaim:
        raw = seal_start(self._identity, self._run_id, self.nonce, began_at, others)
        return StartClaim(self.nonce, began_at, frozenset(others), raw)

    def claim_for(self, public_key: bytes, nonce: bytes) -> bytes:
        """Return our claim for a peer with this key and nonce. If the key is ours, the claim names the peer's nonce, as
        an answer to its challenge."""
        foreign = len(nonce) == START_NONCE_BYTES and nonce not in (self.nonce, *self._own.others)
        if public_key != self._identity.public_key or not foreign:
            return self._own.raw
        # Not stored: the peer has not proven the key yet, and would push out the nonces of those that have.
        others = [*self._own.others][: MAX_OTHERS - 1]
        return self._signed(self._own.began_at, (nonce, *others)).raw

    @property
    def claim(self) -> bytes:
        """Our signed claim."""
        return self._own.raw

    def other_of(self, public_key: bytes, nonce: bytes) -> bytes:
        """Return a claim of another start of this key than the one with `nonce`, to be shown to the process with
        `nonce`. Prefers a claim that names the nonce, then the latest. Empty: none is known."""
        others = [claim for other, claim in self._met.get(public_key, {}).items() if other != nonce]
        return max(reversed(others), key=lambda claim: nonce in claim.others).raw if others and nonce else b""

    def learn(self, public_key: bytes, raw: bytes) -> tuple[bytes, frozenset[bytes]]:
        """Store a peer's claim about itself. The peer has proven this key. An invalid claim is ignored.

        Return the claim's nonce, and the nonces of other starts that it names for the first time, which should see the
        claim."""
        claim = open_start(raw, self._run_id, public_key)
        if claim is None:
            return b"", frozenset()
        if public_key == self._identity.public_key:
            self._judge(claim)
            return claim.nonce, frozenset()
        met = self._met.setdefault(public_key, OrderedDict())
        before = met.pop(claim.nonce, None)
        met[claim.nonce] = claim
        while len(met) > MAX_OTHERS:
            met.popitem(last=False)
        self._met.move_to_end(public_key)
        while len(self._met) > MAX_KEYS:
            self._met.popitem(last=False)
        return claim.nonce, claim.others - (before.others if before is not None else frozenset())

    def judge(self, raw: bytes) -> None:
        """Judge a claim about another start of our key that any peer showed us. Only its signature is trusted, not the
        peer."""
        if (claim := open_start(raw, self._run_id, self._identity.public_key)) is not None:
            self._judge(claim)

    def _judge(self, claim: StartClaim) -> None:
        if claim.nonce == self.nonce:
            return
        proves = self.nonce in claim.others
        if claim.nonce not in self._shown:
            self._shown[claim.nonce] = None
            while len(self._shown) > MAX_OTHERS:
                unproven = [nonce for nonce in self._shown if nonce not in self._proven]
                del self._shown[(unproven or [*self._shown])[0]]
            self._own = self._signed(self._own.began_at, tuple(self._shown))
        if not proves or claim.nonce in self._proven or len(self._proven) >= MAX_OTHERS:
            return
        self._proven.add(claim.nonce)
        if claim.is_before(self._own):
            self.earlier = self.earlier or claim
        self._found(claim)

    def notify(self, found: Callable[[StartClaim], None]) -> None:
        """Replace the callback for proven other starts."""
        self._found = found
