"""The peers that have proven themselves to this one, and the rounds in which they go first.

A fresh key costs nothing, an accepted exchange costs work. So a peer counts as proven after `NEEDED` accepted exchanges
with us. Receipts of accepted exchanges with `VOUCHERS` such peers count as much. Three liars sign receipts for any
number of keys. So a vouched peer vouches for nobody, a voucher's receipts of one round count for one partner, and at
most as many vouched peers are proven as peers by their own exchanges, the latest ones.

Edges between the proven outweigh all others in three rounds of four. In the fourth all edges weigh the same. All peers
draw the same fourth round. Newcomers are met there, and the swarm mixes: see `MIXING_GAP`. The module is pure."""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Container, Iterator
from itertools import islice
from typing import Any

from peer.protocol.messages import PeerId, RoundKey, RunId

NEEDED = 4
"""Accepted exchanges with us that prove a peer."""
VOUCHERS = 3
"""Proven peers whose receipts prove a peer."""
LEAST = 3
"""Proven peers in sight below which none goes first. Peers with one or two favourites would meet those alone."""
BLOCK_ROUNDS = 4
"""One round in so many is unbiased."""
MIXING_GAP = 1 / (2 * BLOCK_ROUNDS)
"""Least spectral gap of the expected mixing matrix, whoever is proven to whom. An unbiased matching alone has a gap of
at least 1/2, and the matrix of the other rounds has no eigenvalue above 1."""
MAX_KEPT = 4096
"""Most peers that are remembered, of each kind."""
MAX_SAID = 2**14
"""Receipts of vouchers that are remembered."""
MAX_BYTES = 2**20
"""Beyond it nothing is read."""
FORMAT = 1
_MAX_ID = 64


def unbiased(run_id: RunId, round_: int) -> bool:
    """Return whether all edges weigh the same in this round. One round of each `BLOCK_ROUNDS` is drawn by the run's
    hash, the same on every peer."""
    block, place = divmod(round_, BLOCK_ROUNDS)
    drawn = hashlib.blake2b(f"unbiased {block}".encode(), digest_size=8, key=run_id[:32]).digest()
    return int.from_bytes(drawn, "big") % BLOCK_ROUNDS == place


class ProvenPeers:
    """The exchanges with each peer that were accepted, and the peers that vouch for it."""

    def __init__(self) -> None:
        self._changed = False
        self._accepted: OrderedDict[PeerId, int] = OrderedDict()
        self._vouchers: OrderedDict[PeerId, set[PeerId]] = OrderedDict()
        self._said: OrderedDict[tuple[PeerId, RoundKey], PeerId] = OrderedDict()
        """The partner that a voucher named first in a round."""

    def accepted(self, peer: PeerId) -> None:
        """Note an exchange with this peer whose values were used."""
        before = self._accepted.get(peer, 0)
        self._accepted[peer] = min(before + 1, NEEDED)
        self._accepted.move_to_end(peer)
        if len(self._accepted) > MAX_KEPT:
            self._accepted.popitem(last=False)
        self._changed |= before < NEEDED

    def vouched(self, peer: PeerId, by: PeerId, key: RoundKey) -> None:
        """Note a receipt of an accepted exchange that `by` signed for this peer. Its signature is checked already.
        Receipts of peers that proved nothing to us do not count, nor those that name a second partner of one round."""
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
        """Forget all that speaks for a peer: it did something that puts it out of favour."""
        self._changed |= peer in self._accepted or peer in self._vouchers
        self._accepted.pop(peer, None)
        self._vouchers.pop(peer, None)

    def __contains__(self, peer: PeerId) -> bool:
        return self._by_own_exchanges(peer) or (self._is_vouched(peer) and peer in self._vouched_among(None))

    def __iter__(self) -> Iterator[PeerId]:
        return iter([*self._own_among(None), *self._vouched_among(None)])

    def among(self, present: Container[PeerId]) -> set[PeerId]:
        """Return the proven ones that are present. Of those that others vouch for at most as many as there are
        others."""
        return {*self._own_among(present), *self._vouched_among(present)}

    def _own_among(self, present: Container[PeerId] | None) -> list[PeerId]:
        return [
            peer for peer in self._accepted if self._by_own_exchanges(peer) and (present is None or peer in present)
        ]

    def _vouched_among(self, present: Container[PeerId] | None) -> list[PeerId]:
        """Return those that are proven by vouchers alone, the latest first."""
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
        """Return the peers whose edges outweigh others in a biased round. None while fewer than `LEAST` are present."""
        found = self.among(present)
        return found if len(found) >= LEAST else set()

    def _by_own_exchanges(self, peer: PeerId) -> bool:
        return self._accepted.get(peer, 0) >= NEEDED

    def pack_if_changed(self) -> bytes | None:
        """Return `pack` if something has changed since the last call."""
        changed, self._changed = self._changed, False
        return self.pack() if changed else None

    def pack(self) -> bytes:
        """Encode for `unpack`."""
        vouchers = [[peer, sorted(by)] for peer, by in self._vouchers.items()]
        body = {"format": FORMAT, "accepted": list(self._accepted.items()), "vouchers": vouchers}
        return json.dumps(body, separators=(",", ":")).encode()


def unpack(raw: bytes) -> ProvenPeers:
    """Decode what `pack` made. Raises ValueError for anything else."""
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
