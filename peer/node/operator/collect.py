"""Fetches the newest state of a run from its peers, for the operator's node to keep.

In a group there is one state: the one whose digest, momentum included, most donors agree on. In pairs every peer has
another state: a few whole states are fetched in parallel and averaged. Each comes over one donor's line, so that this
takes no longer than one fetch. If states cannot be evaluated, peers with receipts of others are asked first, and
outlying states are left out of the mean. Fetched states lie on disk, so that the node needs no memory for them.
`peer.protocol.policy.donors` decides which donors are asked, their number, and how long to wait for slow ones.

A donor that gives nothing is replaced by another one."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import shutil
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import cast

import numpy as np
import torch

from peer.aio.tasks import uninterrupted
from peer.aio.threads import Offload
from peer.errors import PeerError
from peer.joining.context import JoinContext
from peer.joining.fetch_terms import FetchTerms, RunKnowledge
from peer.joining.state import StateFetch
from peer.observe.progress import ignore_progress
from peer.ports.directory import DialReport, Directory
from peer.protocol.messages import PeerId, PeerRecord
from peer.protocol.model.layout import Layout
from peer.protocol.policy.donors import (
    COMPARABLE,
    ENOUGH,
    KEEPER_PATIENCE_S,
    MEAN_DONORS,
    donors_of_mean,
    grace_s,
    mean_exclusion_reason,
    states_apart,
    with_own_state,
)
from peer.protocol.swarm.claimed_round import claimed_round
from peer.state.transfer.pieces import PieceStore
from peer.state.unnamed import unnamed_values

MEAN_ELEMENTS = 2**20
"""Elements that are averaged at a time."""


@dataclass(slots=True)
class Collected:
    """A state fetched from peers. `params` and `momentum`: flat fp32, None once released. `donors`: peers that gave
    it."""

    params: torch.Tensor | None
    momentum: torch.Tensor | None
    round: int
    donors: tuple[PeerId, ...]
    states: int = 1
    """Number of whole states that were fetched in parallel for it."""

    def release(self) -> None:
        """Free the tensors. Takes long for a large state, so it runs in a thread."""
        self.params = self.momentum = None


@dataclass(frozen=True, slots=True)
class _DonorState:
    """The state of one donor in a file of flat fp32."""

    donor: PeerId
    round: int
    file: Path


@dataclass(slots=True)
class _FetchedStates:
    """The states that are being fetched in parallel for a mean."""

    donors: list[PeerRecord]
    """Donors that are still to be asked."""
    taken: list[_DonorState] = field(default_factory=list)
    problem: str = "no peer with a complete state is there"
    """Why the last donor gave no state, for a person."""


class _FixedDirectory:
    """A directory that contains a fixed set of records."""

    def __init__(self, records: Sequence[PeerRecord]) -> None:
        self._records = {record.peer_id: record for record in records}

    async def peers(self) -> dict[PeerId, PeerRecord]:
        return self._records

    def contact(self) -> DialReport:
        return DialReport()


class StateCollector:
    """Fetches states of a run. `scratch`: a folder for it alone. `offload`: runs writing and averaging in a thread."""

    def __init__(
        self,
        context: JoinContext,
        layout: Layout,
        scratch: Path,
        offload: Offload,
        *,
        momentum: bool,
        trusted: Callable[[], Collection[PeerId]] | None = None,
    ) -> None:
        """`trusted`: returns the peers for which others signed receipts, in a run whose states cannot be evaluated.
        None: states are evaluated before they are kept."""
        self._say = context.say
        self._trusted = trusted
        self._context = replace(context, say=lambda line: None)
        self._layout = layout
        self._scratch = scratch
        self._offload = offload
        self._momentum = momentum

    async def collect(self, records: Sequence[PeerRecord]) -> Collected | str:
        """Return the state that these peers give, or why there is none, for a person. Raises OSError when it cannot be
        written."""
        donors = with_own_state(records)
        if self._momentum:
            return await self._fetch(donors)
        self._clear()
        try:
            return await self._mean(donors)
        finally:
            self._clear()

    async def _mean(self, donors: Sequence[PeerRecord]) -> Collected | str:
        trusted = self._trusted() if self._trusted is not None else frozenset()
        some = _FetchedStates(donors_of_mean(donors, self._context.rng, trusted))
        enough = ENOUGH if self._trusted is None else COMPARABLE
        self._scratch.mkdir(mode=0o700, exist_ok=True)
        began = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as places:
            waiting = {places.create_task(self._one(some, donors)) for _ in range(MEAN_DONORS)}
            while waiting and len(some.taken) < enough:
                _, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            if waiting:
                _, waiting = await asyncio.wait(waiting, timeout=grace_s(asyncio.get_running_loop().time() - began))
            for slow in waiting:
                slow.cancel()
        if not some.taken:
            return some.problem
        taken = some.taken if self._trusted is None else await self._not_apart(some.taken, trusted)
        params = await self._offload(lambda: self._mean_of([one.file for one in taken]))
        round_ = min(one.round for one in taken)
        givers = tuple(sorted(one.donor for one in taken))
        return Collected(params, None, round_, givers, min(MEAN_DONORS, len(donors)))

    async def _not_apart(self, taken: list[_DonorState], trusted: Collection[PeerId]) -> list[_DonorState]:
        """Return the states without the outliers."""
        distances = await self._offload(lambda: distances_of([one.file for one in taken]))
        apart = states_apart(distances, {number for number, one in enumerate(taken) if one.donor in trusted})
        for number, why in apart.items():
            self._say(f"the state of {taken[number].donor} goes into no kept state: {why}")
        return [one for number, one in enumerate(taken) if number not in apart]

    async def _one(self, some: _FetchedStates, donors: Sequence[PeerRecord]) -> None:
        """Fetch one state that is close to the run's round, from the first donor that gives one."""
        while some.donors:
            donor, file = some.donors.pop(0), self._scratch / str(len(some.donors))
            found = await self._fetch([donor])
            if isinstance(found, str):
                some.problem = f"{donor.peer_id}: {found}"
            elif why := mean_exclusion_reason(found.round, await self._round_of(donors)):
                some.problem = f"{donor.peer_id}: {why}"
            else:
                await uninterrupted(self._offload(partial(_write, file, found)))
                some.taken.append(_DonorState(donor.peer_id, found.round, file))
                return

    async def _round_of(self, donors: Sequence[PeerRecord]) -> int:
        """Return the present round of the donors, by their records together, so that one donor cannot decide it."""
        now = await self._context.directory.peers()
        return claimed_round({donor.peer_id: now.get(donor.peer_id, donor).round for donor in donors}) or 0

    async def _fetch(self, donors: Sequence[PeerRecord]) -> Collected | str:
        """Fetch one state from these donors together. Return it, or why there is none."""
        context = replace(self._context, directory=cast(Directory, _FixedDirectory(donors)))
        pieces = await self._offload(self._pieces)
        knowledge = RunKnowledge(proven=frozenset(self._trusted() if self._trusted is not None else ()))
        terms = FetchTerms(momentum=self._momentum, patience_s=KEEPER_PATIENCE_S, fresh=True, knowledge=knowledge)
        fetch = StateFetch(context, self._layout, pieces, terms, ignore_progress, self._offload)
        try:
            state = await fetch.state(None)
            momentum = state.outer.momentum if self._momentum else None
            return Collected(state.outer.params, momentum, state.round, tuple(fetch.donors))
        except PeerError as error:
            return error.found
        finally:
            await uninterrupted(self._offload(pieces.release))  # freeing a large file blocks

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
        """Remove the files that a fetch left on disk."""
        with contextlib.suppress(OSError):
            shutil.rmtree(self._scratch)


def _write(file: Path, found: Collected) -> None:
    """Write the params to a file, and release the state. Raises OSError."""
    assert found.params is not None
    found.params.numpy().tofile(file)
    found.release()


def distances_of(files: Sequence[Path]) -> list[list[float]]:
    """Return the matrix of Euclidean distances between states in files of flat fp32. Raises OSError."""
    squares = np.zeros((len(files), len(files)))
    elements = files[0].stat().st_size // 4
    for start in range(0, elements, MEAN_ELEMENTS):
        count = min(MEAN_ELEMENTS, elements - start)
        parts = [np.fromfile(file, "<f4", count, offset=4 * start).astype(np.float64) for file in files]
        for one, other in itertools.combinations(range(len(files)), 2):
            difference = parts[one] - parts[other]
            squares[one, other] += difference @ difference
    return [[float(value) for value in row] for row in np.sqrt(squares + squares.T)]


def write_mean(files: Sequence[Path], into: torch.Tensor) -> None:
    """Write the mean of states in files of flat fp32 into `into`, part by part. Raises OSError."""
    mean = into.numpy()
    for start in range(0, len(mean), MEAN_ELEMENTS):
        part = mean[start : start + MEAN_ELEMENTS]
        total = np.zeros(len(part), dtype=np.float64)
        for file in files:
            total += np.fromfile(file, "<f4", len(part), offset=4 * start)
        part[:] = total / len(files)
