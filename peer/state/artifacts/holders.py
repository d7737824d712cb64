"""Finds the peers that hold an artifact, by querying them."""

from __future__ import annotations

import asyncio
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from peer.errors import ExchangeError
from peer.protocol.messages import MAX_ARTIFACTS, NODES, PeerId, PeerRecord, Status
from peer.protocol.wire.payload import Arrived

QUERY_S = 5.0
"""Most seconds for one call."""
MOST_CONCURRENT = 4
"""Calls that run at the same time."""
MOST_QUERIED = 16
"""Most peers that one search queries. The next search queries others."""
HELD_S = 300.0
"""Seconds for which the answer of a peer that holds an artifact is valid."""
NOT_HELD_S = 5.0
"""Seconds for which the answer of a peer without the artifact is valid. A failed call counts as such an answer."""
MOST_DIGESTS = 4096
"""Artifacts for which answers are stored. The one that was queried least recently is dropped first."""
DOES_NOT_HAVE_IT = "does not have it"

Peers = Callable[[], Awaitable[Mapping[PeerId, PeerRecord]]]


class ArtifactTransport(Protocol):
    """The calls of a transport that are used to fetch artifacts."""

    async def query_artifacts(self, holder: PeerRecord, digests: Sequence[bytes], timeout_s: float) -> list[bool]: ...

    async def fetch_artifact(
        self, donor: PeerRecord, digest: bytes, piece: int, nbytes: int, timeout_s: float, arrived: Arrived
    ) -> bytes: ...


@dataclass(frozen=True, slots=True)
class _Answer:
    """A peer's answer to the question whether it holds one artifact. `reason`: why it does not serve the artifact."""

    until: float
    """End of the answer's validity, by the time of the event loop."""
    held: bool
    reason: str = ""


class HolderSearch:
    """Queries peers about artifacts and caches their answers. `peers`: returns the records of the directory."""

    def __init__(self, transport: ArtifactTransport, peers: Peers, rng: random.Random) -> None:
        self._transport = transport
        self._peers = peers
        self._rng = rng
        self._records: Mapping[PeerId, PeerRecord] = {}
        self._answers: OrderedDict[bytes, dict[PeerId, _Answer]] = OrderedDict()

    def holders(self, digest: bytes) -> list[PeerRecord]:
        """Return the peers that hold an artifact by valid answers, the preferred donors first. Makes no call."""
        answers = self._answers.get(digest, {})
        held = [peer for peer, answer in answers.items() if answer.held and answer.until > _now()]
        return self._ordered([self._records[peer] for peer in held if peer in self._records])

    def refusal_reasons(self, digest: bytes) -> dict[PeerId, str]:
        """Return peer -> why it does not serve an artifact, by its last answer, for a person."""
        return {peer: answer.reason for peer, answer in self._answers.get(digest, {}).items() if not answer.held}

    def record_failure(self, digest: bytes, peer: PeerId, why: str) -> None:
        """Note that a peer failed to give an artifact. It is queried again after `NOT_HELD_S`."""
        self._remember(digest, peer, _Answer(_now() + NOT_HELD_S, held=False, reason=why))

    async def query(
        self, digests: Sequence[bytes], on_holder: Callable[[PeerRecord], None] = lambda peer: None
    ) -> None:
        """Ask up to `MOST_QUERIED` peers which of these artifacts they hold.

        Peers with valid answers for all of them are left out. `on_holder` is called as soon as a peer that holds one
        has answered."""
        self._records = await self._peers()
        able = [record for record in self._records.values() if record.status is not Status.LEAVING]
        lacking = {record: missing for record in able if (missing := self._unanswered(record.peer_id, digests))}
        places = asyncio.Semaphore(MOST_CONCURRENT)
        async with asyncio.TaskGroup() as asking:
            for record in self._ordered(list(lacking))[:MOST_QUERIED]:
                asking.create_task(self._query_peer(record, lacking[record], places, on_holder))

    async def _query_peer(
        self,
        record: PeerRecord,
        digests: Sequence[bytes],
        places: asyncio.Semaphore,
        on_holder: Callable[[PeerRecord], None],
    ) -> None:
        for start in range(0, len(digests), MAX_ARTIFACTS):
            batch = digests[start : start + MAX_ARTIFACTS]
            try:
                async with places:
                    held = await self._transport.query_artifacts(record, batch, QUERY_S)
            except ExchangeError as error:
                for digest in batch:
                    self.record_failure(digest, record.peer_id, str(error))
                return
            for digest, has in zip(batch, held, strict=True):
                until = _now() + (HELD_S if has else NOT_HELD_S)
                self._remember(digest, record.peer_id, _Answer(until, has, "" if has else DOES_NOT_HAVE_IT))
            if any(held):
                on_holder(record)

    def _unanswered(self, peer: PeerId, digests: Sequence[bytes]) -> list[bytes]:
        now, unknown = _now(), []
        for digest in digests:
            answer = self._answers.get(digest, {}).get(peer)
            if answer is None or answer.until <= now:
                unknown.append(digest)
        return unknown

    def _remember(self, digest: bytes, peer: PeerId, answer: _Answer) -> None:
        answers = self._answers.setdefault(digest, {})
        for gone in answers.keys() - self._records.keys():
            del answers[gone]
        answers[peer] = answer
        self._answers.move_to_end(digest)
        while len(self._answers) > MOST_DIGESTS:
            self._answers.popitem(last=False)

    def _ordered(self, records: list[PeerRecord]) -> list[PeerRecord]:
        """Return the records of the most reachable peers first; among equally reachable ones the operator's nodes come
        first, and the rest of the order is random."""
        self._rng.shuffle(records)
        return sorted(records, key=lambda record: (-record.reach, record.status not in NODES))


def _now() -> float:
    return asyncio.get_running_loop().time()
