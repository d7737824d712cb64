"""When round 0 begins, as the operator's node signs it."""

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
"""Between the last peer's being ready and round 0: by then all have been told the paper."""
ASKED = 8
"""Before a node signs a start, so many peers are asked whether one was signed already."""


class StartTime:
    """When round 0 began: the manifest's word, else a signed start, which this node signs when enough peers were first
    ready. A node whose key may not sign says so as soon as it starts, since the run cannot begin by it."""

    def __init__(
        self, node: OpenNode, statements: StatementSync, min_peers: int, file: Path = Path("run.toml")
    ) -> None:
        """`file`: the manifest's, for the command that the operator has to run."""
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
        """Seconds since the epoch; 0: not known yet."""
        return known_start(self._log, self._node.local.folder.path)

    async def settle(self) -> bool:
        """Look once; True when the start is known."""
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
        """A node that lost its home, or another one of the operator, may have signed it already."""
        able = [record for record in records if record.reach]
        some = random.sample(able, min(ASKED, len(able)))
        await asyncio.gather(*(self._statements.fetch_from(self._node.transport, record, [PAPER]) for record in some))

    def _sign(self, start: float) -> None:
        """Sign and keep it; say so when this node's key may not."""
        local = self._node.local
        try:
            self._statements.add_own([self._log.sign_start(local.identity, start, local.clock.now())])
        except BadPayload:
            self._tell_not_allowed()

    def _tell_taken_back(self) -> None:
        """Tell once that only the operator can say now when the run began."""
        self._tell(
            "the run has begun, and its start went with the right of the node that had signed it. Newcomers wait until "
            f"the operator signs it: peer manifest delegate {for_shell(self._file)} NODE --start SECONDS"
        )

    def _tell_not_allowed(self) -> None:
        """Tell once what the operator has to do."""
        me = self._node.local.me
        self._tell(
            f"this node's key {me} may not sign when the run begins, so it waits for one that may. "
            f"The operator lets it with: peer manifest delegate {for_shell(self._file)} {me}"
        )

    def _tell(self, line: str) -> None:
        if line not in self._told:
            self._told.add(line)
            self._node.local.say(line)
