"""The newest state of a run, fetched from its peers for the operator's node to keep.

In groups there is one state: the one that most donors agree on by its digest, momentum included. In pairs there are as
many as peers: up to `DONORS` whole states are fetched one after another, and their mean is taken. A fetched state lies
on the disk, so that the node needs no memory for it."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch

from peer.aio.tasks import uninterrupted
from peer.aio.threads import Offload
from peer.errors import PeerError
from peer.join.context import JoinContext
from peer.join.donors import COMPLETE
from peer.join.fetch_terms import FetchTerms
from peer.join.offers import OLD_ROUNDS
from peer.join.state import StateFetch
from peer.observe.progress import untold
from peer.ports.directory import DialReport, Directory
from peer.protocol.messages import NODES, PeerId, PeerRecord
from peer.protocol.model.layout import Layout
from peer.protocol.swarm.claimed_round import claimed_round
from peer.state.transfer.pieces import PieceStore
from peer.state.unnamed import unnamed_values

DONORS = 4
"""Whole states of pairs whose mean is taken: the mean of a few is better than most of them, and more cost the peers'
lines without a gain that shows."""
PATIENCE_S = 20.0
"""Seconds without a piece after which a donor is given up."""
MEAN_ELEMENTS = 2**20
"""Elements whose mean is made at a time."""


@dataclass(slots=True)
class Collected:
    """A state as the peers gave it."""

    params: torch.Tensor | None
    momentum: torch.Tensor | None
    round: int
    donors: tuple[PeerId, ...]

    def let_go(self) -> None:
        """Give the space of the tensors back. For a large state that takes long, so a thread does it."""
        self.params = self.momentum = None


class _These:
    """A directory that shows a fixed set of records."""

    def __init__(self, records: Sequence[PeerRecord]) -> None:
        self._records = {record.peer_id: record for record in records}

    async def peers(self) -> dict[PeerId, PeerRecord]:
        return self._records

    def contact(self) -> DialReport:
        return DialReport()


def able(records: Sequence[PeerRecord]) -> list[PeerRecord]:
    """Return the peers that have a complete state of their own."""
    return [record for record in records if record.status in COMPLETE and record.status not in NODES]


class StateCollector:
    """Fetches states. `scratch` is a folder of its own; `offload` writes and adds in a thread."""

    def __init__(
        self, context: JoinContext, layout: Layout, scratch: Path, offload: Offload, *, momentum: bool
    ) -> None:
        self._context = replace(context, say=lambda line: None)
        self._layout = layout
        self._scratch = scratch
        self._offload = offload
        self._momentum = momentum

    async def collect(self, records: Sequence[PeerRecord]) -> Collected | str:
        """Return the state that these peers give, or why none came, for a person."""
        donors = able(records)
        if self._momentum:
            return await self._fetch(donors)
        self._clear()
        try:
            return await self._mean(self._context.rng.sample(donors, len(donors)))
        finally:
            self._clear()

    async def _mean(self, donors: Sequence[PeerRecord]) -> Collected | str:
        rounds, given, problem = list[int](), list[PeerId](), "no peer with a complete state is there"
        self._scratch.mkdir(mode=0o700, exist_ok=True)
        for donor in donors[: 2 * DONORS]:
            if len(given) == DONORS:
                break
            found = await self._fetch([donor])
            if isinstance(found, str):
                problem = f"{donor.peer_id}: {found}"
                continue
            if abs(found.round - await self._round_of(donors)) > OLD_ROUNDS:
                problem = f"{donor.peer_id}: its round {found.round} is far from the run's"
                continue
            await self._offload(partial(_write, self._scratch / str(len(given)), found))
            given.append(donor.peer_id)
            rounds.append(found.round)
        if not given:
            return problem
        files = [self._scratch / str(number) for number in range(len(given))]
        params = await self._offload(lambda: self._mean_of(files))
        return Collected(params, None, min(rounds), tuple(sorted(given)))

    async def _round_of(self, donors: Sequence[PeerRecord]) -> int:
        """Return the round that the peers among the donors are in now. The first donor's word must not decide it."""
        now = await self._context.directory.peers()
        return claimed_round({donor.peer_id: now.get(donor.peer_id, donor).round for donor in donors}) or 0

    async def _fetch(self, donors: Sequence[PeerRecord]) -> Collected | str:
        """Fetch one state from these donors together."""
        context = replace(self._context, directory=cast(Directory, _These(donors)))
        pieces = await self._offload(self._pieces)
        terms = FetchTerms(momentum=self._momentum, patience_s=PATIENCE_S, fresh=True)
        fetch = StateFetch(context, self._layout, pieces, terms, untold, self._offload)
        try:
            state = await fetch.state(None)
            momentum = state.outer.momentum if self._momentum else None
            return Collected(state.outer.params, momentum, state.round, tuple(fetch.donors))
        except PeerError as error:
            return error.found
        finally:
            await uninterrupted(self._offload(pieces.let_go))  # its space goes back in a thread

    def _pieces(self) -> PieceStore:
        momentum = self._on_disk() if self._momentum else None
        return PieceStore(self._layout, None, momentum=self._momentum, into=self._on_disk(), momentum_into=momentum)

    def _mean_of(self, files: Sequence[Path]) -> torch.Tensor:
        mean = self._on_disk()
        write_mean(files, mean)
        return mean

    def _on_disk(self) -> torch.Tensor:
        return unnamed_values(self._scratch.parent, self._layout.elements)

    def _clear(self) -> None:
        """Remove what a fetch left on the disk."""
        with contextlib.suppress(OSError):
            shutil.rmtree(self._scratch)


def _write(file: Path, found: Collected) -> None:
    """Write the params, and let the state go. Raises OSError."""
    assert found.params is not None
    found.params.numpy().tofile(file)
    found.let_go()


def write_mean(files: Sequence[Path], into: torch.Tensor) -> None:
    """Write the mean of states in files of flat fp32, part by part. Raises OSError."""
    mean = into.numpy()
    for start in range(0, len(mean), MEAN_ELEMENTS):
        part = mean[start : start + MEAN_ELEMENTS]
        total = np.zeros(len(part), dtype=np.float64)
        for file in files:
            total += np.fromfile(file, "<f4", len(part), offset=4 * start)
        part[:] = total / len(files)
