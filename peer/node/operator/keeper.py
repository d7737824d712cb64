"""Keeps the newest good state of a run on the operator's node, and declares when the run is over.

Periodically it fetches the newest state, has it evaluated, and serves it to joiners in place of the former one. At the
run's end it fetches the last state. Then the node's record has the status ENDED, and waiting peers may leave."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from functools import partial
from typing import Any

from peer.aio.tasks import background_task
from peer.aio.threads import Offload
from peer.joining.context import JoinContext
from peer.joining.ended import ended_sentence
from peer.joining.reset import founded_on
from peer.node.operator.collect import Collected, StateCollector
from peer.node.operator.judge import NotJudged, StateJudge
from peer.node.operator.kept import KeptFacts, StateArchive
from peer.node.operator.run_progress import RunActivity, RunEnd, RunProgress
from peer.observe.status.value import KeptStateFacts, KeptStatus
from peer.outer.state import OuterState
from peer.protocol.messages import PeerRecord, Status
from peer.protocol.policy.amendments import RunPolicy
from peer.protocol.policy.donors import (
    GONE_S,
    discard_reason,
    donors_of_last,
    first_is_outdated,
    keep_again_s,
    last_wait_s,
    with_own_state,
)
from peer.run.manifest import Manifest
from peer.run.resolve import resolve
from peer.state.checkpoint import Checkpoint, CheckpointError

LOOK_S = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedRun:
    """The run as the operator's node observes it."""

    manifest: Manifest
    end: RunEnd
    progress: RunProgress
    activity: RunActivity
    policy: Callable[[], RunPolicy]
    """Returns the operator's policy, with all amendments applied."""


@dataclass(frozen=True, slots=True)
class ServableState:
    """A kept state in the form in which it is served."""

    facts: KeptFacts
    outer: OuterState
    digest: bytes = b""
    """The digest that may be signed (`peer.state.snapshot.digest_of_state`). Empty: the state was not evaluated, or is
    a pair's, in which each peer has another state."""


class StateKeeper:
    """Keeps states while `run` is awaited.

    `collector`: fetches states. None: no states are kept. `judge`: evaluates them. None: states are kept after the
    checks of every fetch only (digests, and finite values). `serve`: called with each newly kept state."""

    def __init__(
        self,
        context: JoinContext,
        run: WatchedRun,
        states: StateArchive,
        collector: StateCollector | None,
        judge: StateJudge | None,
        every_s: float,
        offload: Offload,
        serve: Callable[[ServableState], None],
    ) -> None:
        self._context = context
        self._run = run
        self._states = states
        self._collector = collector
        self._judge = judge
        self._every_s = every_s
        self._offload = offload
        self._serve = serve
        self._kept: KeptFacts | None = None
        self._due_at = self._now() + every_s
        self._tried = False
        self._told = ""
        self._last_round = 0
        self.ended = False

    @property
    def status(self) -> Status:
        """Status in the node's record."""
        return Status.ENDED if self.ended else Status.SERVING

    @property
    def round(self) -> int:
        """Round in the node's record: the present round of the run, or the round of the last state once the run is
        over."""
        return self._last_round if self.ended else self._run.progress.value

    def report(self) -> KeptStatus:
        """Return the kept state's metadata, and the last message, for `peer status`."""
        kept = self._kept
        state = None if kept is None else KeptStateFacts(kept.round, kept.tokens, kept.loss, kept.donors, kept.founded)
        return KeptStatus(state, self._told, self.ended)

    async def run(self) -> None:
        """Keep states until cancelled. Raises JudgeFailed when no state can be evaluated."""
        if self._collector is not None:
            await self._load()
            if self._judge is not None:
                await self._unless_over(self._judge.ensure_starts())
        candidate = await self._offload(self._states.candidate) if self._collector is not None else None
        if candidate is not None:
            await self._unless_over(self._consider(candidate))
        while True:
            while not self._over():
                if self._is_due():
                    await self._unless_over(self._keep())
                await asyncio.sleep(LOOK_S)
            last = await self._last_candidate()
            self._end(last)
            if last is not None:
                await self._consider(last, await self._serve_unjudged(last))
                self._end(None)
            while self._over():
                await asyncio.sleep(LOOK_S)
            self.ended = False  # rounds in steps only: the end was claimed by records that later ones contradict

    # -- times ---------------------------------------------------------------------------------------------------------

    def _over(self) -> bool:
        done = self._kept_round >= self._run.end.total_rounds
        return done or self._run.end.over(self._context.clock.now())

    def _is_due(self) -> bool:
        """Return whether a newer state exists and it is time to fetch it."""
        reached = self._run.progress.value
        if self._collector is None or reached <= self._kept_round:
            return False
        first = self._kept is None and first_is_outdated(reached)
        return (first and not self._tried) or self._now() >= self._due_at

    async def _unless_over(self, work: Coroutine[Any, Any, object]) -> None:
        """Await the work, but cancel it when the run is over, because the last state must be fetched then."""
        async with background_task(work) as task:
            while not task.done() and not self._over():
                await asyncio.wait({task}, timeout=LOOK_S)

    # -- during the run ------------------------------------------------------------------------------------------------

    async def _load(self) -> None:
        """Serve the newest state that an earlier process kept."""
        kept = await self._offload(self._states.newest)
        if kept is not None:
            await self._serve_kept(kept)

    async def _keep(self) -> None:
        began, self._tried = self._now(), True
        found = await self._collect(await self._records())
        took = (self._now() - began) * (1 if isinstance(found, str) else found.states)
        candidate = await self._propose(found)
        good = candidate is not None and await self._consider(candidate)
        self._due_at = began + keep_again_s(good=good, every_s=self._every_s, took_s=took)

    async def _collect(self, records: list[PeerRecord]) -> Collected | str:
        assert self._collector is not None
        try:
            return await self._collector.collect(records)
        except OSError as error:
            return f"the state cannot be written: {error.strerror}"

    async def _propose(self, found: Collected | str) -> Checkpoint | None:
        """Write the fetched state as a candidate. None: there is none, and the reason was reported."""
        if isinstance(found, str):
            self._tell(f"no newer state is kept: {found}")
            return None
        try:
            candidate = await self._offload(partial(self._write, found, self._run.policy()))
        except (CheckpointError, OSError) as error:
            self._tell(f"the state of round {found.round} is not kept: {error}")
            return None
        if candidate is None:
            self._tell(f"the state of round {found.round} is not kept: it is of before the restart of the run")
        return candidate

    def _write(self, found: Collected, policy: RunPolicy) -> Checkpoint | None:
        """Write a candidate and release the fetched state. Runs in a thread. None: the state is older than the run's
        restart."""
        assert found.params is not None
        try:
            round_ = min(found.round, self._run.progress.furthest())
            founded = founded_on(found.params, round_, policy)
            if policy.founded and not founded:
                return None
            facts = KeptFacts(round_, self._run.activity.tokens, None, found.donors, founded.hex())
            return self._states.propose(found.params, found.momentum, facts)
        finally:
            found.release()

    async def _consider(self, candidate: Checkpoint, served: OuterState | None = None) -> bool:
        """Evaluate a candidate, and keep and serve it if it is good. Return whether it is. `served`: its tensors, if
        they are served already."""
        round_ = KeptFacts.of(candidate.facts).round
        try:
            loss, why = await self._judged(candidate)
            if why:
                await self._offload(lambda: self._states.refuse(candidate))
                self._tell(f"the state of round {round_} is not kept: {why}")
                return False
            kept = await self._offload(lambda: self._states.accept(candidate, loss))
        except (CheckpointError, OSError) as error:
            self._tell(f"the state of round {round_} is not kept: {error}")
            return False
        await self._serve_kept(kept, served)
        return True

    async def _judged(self, candidate: Checkpoint) -> tuple[float | None, str]:
        """Return the candidate's loss (None: unchecked), and why it is refused (empty: it is not)."""
        if self._judge is None:
            return None, ""
        facts, kept = KeptFacts.of(candidate.facts), self._kept
        compared = kept if kept is not None and kept.founded == facts.founded else None
        checked = None if compared is None else compared.loss
        try:
            loss = await self._judge.loss_of(candidate.folder)
        except NotJudged as problem:
            if checked is not None:
                return None, str(problem)
            self._tell(f"the state of round {facts.round} is kept unchecked: {problem}")
            return None, ""
        return loss, discard_reason(loss, checked, 0 if compared is None else compared.round)

    async def _serve_kept(self, kept: Checkpoint, loaded: OuterState | None = None) -> None:
        """Serve a kept state. `loaded`: its tensors, if they are in memory already."""
        facts = KeptFacts.of(kept.facts)
        try:
            outer = await self._offload(lambda: self._states.load(kept)) if loaded is None else loaded
        except CheckpointError as error:
            self._tell(f"the kept state cannot be served: {error}")
            return
        judged = facts.loss is not None
        digest = await self._offload(lambda: self._states.digest(outer)) if judged else b""
        self._kept = facts
        self._run.activity.restore_tokens(facts.tokens)
        loss = "unchecked" if facts.loss is None else f"loss {facts.loss:.4f} nats a token"
        self._tell(f"kept the state of round {facts.round} ({loss}), {self._origin(facts.donors)}")
        self._serve(ServableState(facts, outer, digest))

    # -- the end -------------------------------------------------------------------------------------------------------

    async def _last_candidate(self) -> Checkpoint | None:
        """Fetch the state with which the run ended. None: none arrived, or it is kept already."""
        if self._collector is None:
            return None
        total = self._run.end.total_rounds
        left = await self._offload(self._states.candidate)
        if max(self._kept_round, 0 if left is None else KeptFacts.of(left.facts).round) >= total:
            return left
        return await self._fetch_last() or left

    async def _fetch_last(self) -> Checkpoint | None:
        seen = began = self._now()
        limit = last_wait_s(self._run.manifest.model.parameters)
        while self._now() < began + limit and self._now() < seen + GONE_S:
            records = with_own_state(await self._records())
            seen = self._now() if records else seen
            if donors := donors_of_last(records):
                candidate = await self._propose(await self._collect(donors))
                if candidate is not None:
                    return candidate
            await asyncio.sleep(LOOK_S)
        return None

    def _end(self, last: Checkpoint | None) -> None:
        """Declare the run over. `last`: the last state, which may still have to be evaluated."""
        first, self.ended = not self.ended, True
        self._last_round = max(self._kept_round, 0 if last is None else KeptFacts.of(last.facts).round)
        if first:
            self._context.say(ended_sentence(self._run.manifest))

    async def _serve_unjudged(self, last: Checkpoint) -> OuterState | None:
        """Serve the last state while it is being evaluated, if no other state was kept. Return its tensors, or None.

        The evaluation takes long on a busy machine. If the state is then refused, the node goes on to serve it until
        its next start, because it has no other one, and reports why it was refused."""
        if self._kept is not None:
            return None
        try:
            outer = await self._offload(lambda: self._states.load(last))
        except CheckpointError as error:
            self._tell(f"the last state cannot be served: {error}")
            return None
        facts = KeptFacts.of(last.facts)
        self._tell(f"the state of round {facts.round} is served while it is being evaluated, as no other one was kept")
        self._serve(ServableState(facts, outer))
        return outer

    # -- helpers -------------------------------------------------------------------------------------------------------

    @property
    def _kept_round(self) -> int:
        return 0 if self._kept is None else self._kept.round

    async def _records(self) -> list[PeerRecord]:
        banned = self._run.policy().kept_out
        records = (await self._context.directory.peers()).values()
        return [record for record in records if record.peer_id not in banned]

    def _origin(self, donors: tuple[str, ...]) -> str:
        """Return the origin of a state for a person: in pairs the mean of the donors' states, in groups the one state
        of all."""
        if len(donors) == 1:
            return "from 1 peer"
        pairs = resolve(self._run.manifest.sync).paired
        return f"the mean of {len(donors)} peers' states" if pairs else f"from {len(donors)} peers"

    def _tell(self, line: str) -> None:
        if line != self._told:
            self._context.say(line)
        self._told = line

    @staticmethod
    def _now() -> float:
        return asyncio.get_running_loop().time()
