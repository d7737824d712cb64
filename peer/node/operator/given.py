"""Serves a state to joiners: the first state, a state that the operator names, or the newest kept one."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection

from peer.aio.threads import Start
from peer.errors import BadPayload
from peer.joining.reset import digest_of
from peer.membership.statement_sync import StatementSync
from peer.node.handler import DonatedState
from peer.node.open import OpenNode
from peer.node.operator.keeper import ServableState, WatchedRun
from peer.outer.state import OuterState
from peer.protocol.messages import PeerRecord
from peer.protocol.policy.donors import first_state_refusal, kept_state_refusal
from peer.state.snapshot import digest_of_state


class ServedState:
    """Serves one state at a time, and refuses it when no joiner should begin with it."""

    def __init__(
        self,
        node: OpenNode,
        run: WatchedRun,
        statements: StatementSync,
        start: Start,
        *,
        momentum: bool,
    ) -> None:
        """`start`: starts making a copy in a thread. `momentum`: whether a state includes outer_momentum, as a group's
        does."""
        self._node = node
        self._run = run
        self._statements = statements
        self._start = start
        self._state: DonatedState | None = None
        self.momentum = momentum
        self._fixed = False

    def learn(self, records: Collection[PeerRecord]) -> None:
        """Update the run's progress and activity by the records in the directory. Raises HomeUnusable."""
        self._run.progress.learn(records)
        self._run.activity.observe(records, _now())

    async def serve_first(self, outer: OuterState, *, named: bool) -> None:
        """Serve the first state, or one that the operator `named`, which is not replaced before the run ends.

        Its digest is signed, so that no peer begins the run with another state."""
        self._fixed = named
        digest = await asyncio.to_thread(digest_of, outer.params)
        self._sign(0, await asyncio.to_thread(digest_of_state, outer, momentum=self.momentum))

        def outdated_reason() -> str:
            return "" if self._run.policy().founded == digest else first_state_refusal(self._run.progress.value)

        self._serve(outer, lambda: self._run.progress.value, (lambda: "") if named else outdated_reason)

    def serve_kept(self, state: ServableState) -> None:
        """Serve a kept state, unless the operator named one."""
        if self._fixed and not self._over():
            return
        facts = state.facts
        if state.digest:
            self._sign(facts.round, state.digest)

        def outdated_reason() -> str:
            if facts.founded != self._run.policy().founded.hex():
                return "this node has kept a state of before the restart of the run: wait for a peer that trains"
            if self._over():
                return ""
            return kept_state_refusal(facts.round, self._run.progress.value, self._run.activity.alone_s(_now()))

        self._serve(state.outer, lambda: facts.round, outdated_reason)

    def _over(self) -> bool:
        return self._run.end.over(self._node.local.clock.now())

    def _sign(self, round_: int, digest: bytes) -> None:
        """Sign the digest of the state of a round, and publish it. Does nothing if this node may not sign digests."""
        local, statements = self._node.local, self._statements
        with contextlib.suppress(BadPayload):
            statements.add_own([statements.log.sign_digest(local.identity, round_, digest, local.clock.now())])

    def _serve(self, outer: OuterState, round_: Callable[[], int], outdated_reason: Callable[[], str]) -> None:
        former = [self._state]
        self._state = DonatedState(
            outer,
            round_,
            self._node.local.clock.now,
            momentum=self.momentum,
            start=self._start,
            folder=self._node.local.folder.path,
            outdated_reason=outdated_reason,
        )
        self._node.handler.register(state=self._state)
        self._start(former.clear)  # drops the last reference in a thread, because freeing a large state takes long


def _now() -> float:
    return asyncio.get_running_loop().time()
