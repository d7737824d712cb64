"""An operator's node in a simulation. It answers calls and relays, but never trains."""

from __future__ import annotations

import asyncio

from peer.lab.sim.directory import MemoryDirectory
from peer.lab.sim.memory_transport import MemoryTransport
from peer.lab.sim.process import OPERATOR, RUN, SimulatedRun
from peer.lab.sim.virtual_clock import VirtualClock, nap
from peer.membership.peer_table import lifetime
from peer.membership.statement_sync import StatementSync
from peer.node.handler import RequestHandler
from peer.node.record import PeerAddress, describe_self
from peer.protocol.messages import PeerId, Status
from peer.run.statements.log import StatementLog


class RelayNode:
    """One operator's node, from its start until it is closed or killed."""

    def __init__(self, run: SimulatedRun, node: PeerId) -> None:
        self.peer_id = node
        self._run = run
        self._directory = MemoryDirectory(run.hub, node, RUN)
        statements = StatementSync(StatementLog(RUN, OPERATOR.peer_id), lambda event: None)  # a node keeps no journal
        handler = RequestHandler(statements=statements)
        self.transport = MemoryTransport(run.network, node, handler, VirtualClock())
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to announce the node in the directory."""
        self._task = asyncio.get_running_loop().create_task(self._announce())

    async def close(self) -> None:
        """Stop the node. Calls to it are refused from then on."""
        self.transport.close()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _announce(self) -> None:
        run, lasts_s = self._run, lifetime(self._run.pace_s)
        address = PeerAddress(self.peer_id, RUN, lambda: (run.network.address(self.peer_id),), lambda: True)
        while True:
            record = describe_self(
                address, status=Status.SERVING, round_=0, tokens_per_s=0.0, now=run.hub.now(), lifetime_s=lasts_s
            )
            await self._directory.announce(record)
            await nap(lasts_s / 3)
