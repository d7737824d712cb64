"""Proven peers: peers that have done accepted exchanges, and get priority as partners.

A fresh key costs nothing, an accepted exchange costs work. So a peer is proven after `NEEDED` accepted exchanges with
us, or by receipts of accepted exchanges with `VOUCHERS` peers that are proven by their own exchanges. Three liars could
sign receipts for any number of keys. Three rules limit that. A peer that is proven by receipts cannot vouch for others.
A voucher's receipts of one round count for one partner only. At most as many peers are proven by receipts, the latest
ones, as are proven by their own exchanges.

Edges between proven peers have priority in three of four rounds. In the fourth round, which is the same for all peers,
all edges have equal priority, so that newcomers find partners and the swarm mixes (`MIXING_GAP`). The module is
pure."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Container, Iterator
from itertools import islice
from typing import Any

from peer.protocol.messages import PeerId, RoundKey, RunId

NEEDED = 4
"""Accepted exchanges with us that make a peer proven."""
VOUCHERS = 3
"""Proven peers whose receipts make a peer proven."""
LEAST = 3
"""With fewer visible proven peers, none has priority. Otherwise a peer would pair with the same one or two all the
time."""
BLOCK_ROUNDS = 4
"""One of this many rounds is unbiased."""
MIXING_GAP = 1 / (2 * BLOCK_ROUNDS)
"""Lower bound of the spectral gap of the expected mixing matrix, whatever peers are proven. An unbiased matching alone
has a gap of at least 1/2, and the matrix of the other rounds has no eigenvalue above 1."""
MAX_KEPT = 4096
"""Maximum peers that are remembered, with own exchanges and with vouchers each."""
MAX_SAID = 2**14
"""Maximum receipts of vouchers that are remembered."""
MAX_BYTES = 2**20
"""Larger encodings are not decoded."""
FORMAT = 1
_MAX_ID = 64


def unbiased(run_id: RunId, round_: int) -> bool:
    """Return whether all edges weigh the same in this round. A hash of the run chooses one round of each
    `BLOCK_ROUNDS`, the same on every peer."""
    block, place = divmod(round_, BLOCK_ROUNDS)
    drawn = hashlib.blake2b(f"unbiased {block}".encode(), digest_size=8, key=run_id[:32]).digest()
    return int.from_bytes(drawn, "big") % BLOCK_ROUNDS == place


class ProvenPeers:
    """Counts the accepted exchanges with each peer, and the vouchers of each peer."""

    def __init__(self) -> None:
        self._changed = False
        self._accepted: OrderedDict[PeerId, int] = OrderedDict()
        self._vouchers: OrderedDict[PeerId, set[PeerId]] = OrderedDict()
        self._said: OrderedDict[tuple[PeerId, RoundKey], PeerId] = OrderedDict()
        """For each voucher and round, the first partner that a receipt named."""

    def accepted(self, peer: PeerId) -> None:
        """Record an exchange with this peer whose values were used."""
        before = self._accepted.get(peer, 0)
        self._accepted[peer] = min(before + 1, NEEDED)
        self._accepted.move_to_end(peer)
        if len(self._accepted) > MAX_KEPT:
            self._accepted.popitem(last=False)
        self._changed |= before < NEEDED

    def vouched(self, peer: PeerId, by: PeerId, key: RoundKey) -> None:
        """Record a receipt of an accepted exchange that `by` signed for this peer. The caller has verified the
        signature.

        Ignored if `by` is not proven by own exchanges, or has signed a receipt for another partner of the same
        round."""
        if by == peer or not self._by_own_exchanges(by) or self._said.setdefault((by, key.whole), peer) != peer:
            return
        if len(self._said) > MAX_SAID:
            self._said.popitem(last=False)
        vouchers = {voucher for voucher in self._vouchers.get(peer, ()) if self._by_own_exchanges(voucher)}
        if by in vouchers or len(vouchers) >= VOUCHERS:
            return
        self._vouchers[peer] = vouchers | {by}
        self._vouchers.move_to_end(peer)
        if len(self._vouchers) > MAX_KEPT:
            self._vouchers.popitem(last=False)
        self._changed = True

    def revoke(self, peer: PeerId) -> None:
        """Remove a peer that misbehaved: it has to prove itself again."""
        self._changed |= peer in self._accepted or peer in self._vouchers
        self._accepted.pop(peer, None)
        self._vouchers.pop(peer, None)

    def __contains__(self, peer: PeerId) -> bool:
        if self._by_own_exchanges(peer):
            return True
        return peer in self._vouchers and self._is_vouched(peer) and peer in self._vouched_among(None)

    def __iter__(self) -> Iterator[PeerId]:
        return iter([*self._own_among(None), *self._vouched_among(None)])

    def among(self, present: Container[PeerId]) -> set[PeerId]:
        """Return the proven peers among `present`. Those proven by receipts are at most as many as the others."""
        return {*self._own_among(present), *self._vouched_among(present)}

    def _own_among(self, present: Container[PeerId] | None) -> list[PeerId]:
        return [
            peer for peer in self._accepted if self._by_own_exchanges(peer) and (present is None or peer in present)
        ]

    def _vouched_among(self, present: Container[PeerId] | None) -> list[PeerId]:
        """Return the peers that are proven by receipts only, latest first."""
        most = len(self._own_among(present))
        found = (
            peer
            for peer in reversed(self._vouchers)
            if (present is None or peer in present) and self._is_vouched(peer) and not self._by_own_exchanges(peer)
        )
        return list(islice(found, most))

    def _is_vouched(self, peer: PeerId) -> bool:
        return sum(map(self._by_own_exchanges, self._vouchers.get(peer, ()))) >= VOUCHERS

    def going_first(self, present: Container[PeerId]) -> set[PeerId]:
        """Return the peers whose edges have priority in a biased round. Empty if fewer than `LEAST` are present."""
        found = self.among(present)
        return found if len(found) >= LEAST else set()

    def _by_own_exchanges(self, peer: PeerId) -> bool:
        return self._accepted.get(peer, 0) >= NEEDED

    def pack_if_changed(self) -> bytes | None:
        """Return `pack()` if something has changed since the last call, else None."""
        changed, self._changed = self._changed, False
        return self.pack() if changed else None

    def pack(self) -> bytes:
        """Encode as JSON for `unpack`."""
        vouchers = [[peer, sorted(by)] for peer, by in self._vouchers.items()]
        body = {"format": FORMAT, "accepted": list(self._accepted.items()), "vouchers": vouchers}
        return json.dumps(body, separators=(",", ":")).encode()


def unpack(raw: bytes) -> ProvenPeers:
    """Decode the result of `pack`. Raises ValueError for anything else."""
    if len(raw) > MAX_BYTES:
        raise ValueError(f"{len(raw)} bytes")
    found = ProvenPeers()
    try:
        body = json.loads(raw)
        if body["format"] != FORMAT or max(len(body["accepted"]), len(body["vouchers"])) > MAX_KEPT:
            raise ValueError("another format, or too many peers")
        found._accepted.update((_id(peer), _count(count)) for peer, count in body["accepted"])
        found._vouchers.update((_id(peer), _vouchers(by)) for peer, by in body["vouchers"])
    except (TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"not a memory of proven peers: {error!r}") from error
    return found


def _count(value: Any) -> int:
    if type(value) is not int or not 0 < value <= NEEDED:
        raise ValueError("count")
    return value


def _vouchers(value: Any) -> set[PeerId]:
    if not isinstance(value, list) or not 0 < len(value) <= VOUCHERS:
        raise ValueError("vouchers")
    return {_id(text) for text in value}


def _id(text: Any) -> PeerId:
    if not (isinstance(text, str) and 0 < len(text) <= _MAX_ID and text.isascii() and text.isprintable()):
        raise ValueError("id")
    return PeerId(text)
