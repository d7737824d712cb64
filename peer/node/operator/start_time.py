"""Determines the start of round 0, and signs it on the operator's node."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

from peer.errors import BadPayload, for_shell
from peer.membership.statement_sync import StatementSync
from peer.node.open import OpenNode
from peer.protocol.messages import PeerRecord, Status
from peer.run.statements.files import former_start, known_start
from peer.run.statements.kinds import PAPER

START_DELAY_S = 4.0
"""Seconds between the readiness of the last peer and round 0, in which all peers receive the signed start."""
ASKED = 8
"""Before this node signs a start, it asks this many peers whether a start was signed already."""


class StartTime:
    """The start of round 0: the manifest's, or else a signed one, which this node signs when enough peers are ready. A
    node whose key may not sign reports that at its own start, because the run could not begin."""

    def __init__(
        self, node: OpenNode, statements: StatementSync, min_peers: int, file: Path = Path("run.toml")
    ) -> None:
        """`file`: the manifest file, for the command that the operator has to run."""
        self._node = node
        self._statements = statements
        self._log = statements.log
        self._min_peers = min_peers
        self._file = file
        self._told = set[str]()
        if not self._log.awaits_start:
            return
        if kept := former_start(node.local.folder.path):
            self._sign(kept)
        elif not self._log.may(node.local.identity.peer_id, "start", node.local.clock.now()):
            self._tell_not_allowed()

    @property
    def value(self) -> float:
        """Start of round 0, seconds since the epoch. 0: not known yet."""
        return known_start(self._log, self._node.local.folder.path)

    async def settle(self) -> bool:
        """Sign the start if enough peers are ready. Return whether the start is known."""
        if not self.value and self._log.wants_start:
            records = list((await self._node.directory.peers()).values())
            if sum(record.status is Status.TRAINING for record in records) >= self._min_peers:
                await self._ask(records)
                if self._log.awaits_start and not self._statements.start_taken_back:
                    self._sign(self._node.local.clock.now() + START_DELAY_S)
                elif self._log.awaits_start:
                    self._tell_taken_back()
        return bool(self.value)

    async def _ask(self, records: list[PeerRecord]) -> None:
        """Ask peers for a start that was signed already: by another node of the operator, or by this node before it
        lost its home."""
        able = [record for record in records if record.reach]
        some = random.sample(able, min(ASKED, len(able)))
        await asyncio.gather(*(self._statements.fetch_from(self._node.transport, record, [PAPER]) for record in some))

    def _sign(self, start: float) -> None:
        """Sign the start and store it. Report when this node's key may not sign."""
        local = self._node.local
        try:
            self._statements.add_own([self._log.sign_start(local.identity, start, local.clock.now())])
        except BadPayload:
            self._tell_not_allowed()

    def _tell_taken_back(self) -> None:
        """Report once that only the operator can sign the start now."""
        self._tell(
            "the run has begun, and its start went with the right of the node that had signed it. Newcomers wait until "
            f"the operator signs it: peer manifest delegate {for_shell(self._file)} NODE --start SECONDS"
        )

    def _tell_not_allowed(self) -> None:
        """Report once that the operator has to delegate the start to this node."""
        me = self._node.local.me
        self._tell(
            f"this node's key {me} may not sign when the run begins, so it waits for one that may. "
            f"The operator lets it with: peer manifest delegate {for_shell(self._file)} {me}"
        )

    def _tell(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            self._node.local.say(line)
