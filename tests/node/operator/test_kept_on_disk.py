"""States of the operator's node must lie on disk, and their space must be freed once they are unused."""

from __future__ import annotations

import gc
import random
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from peer.aio.threads import inline
from peer.joining.context import JoinContext
from peer.lab.sim.memory_transport import MemoryTransport
from peer.lab.sim.network import Network
from peer.lab.sim.virtual_clock import VirtualClock, run_virtual
from peer.node.handler import DonatedState, RequestHandler
from peer.node.operator.collect import Collected, StateCollector
from peer.node.operator.kept import KeptFacts, StateArchive
from peer.outer.state import OuterState
from peer.protocol.messages import PeerId, PeerRecord, RunId, Status
from peer.protocol.model.layout import Layout, TensorSpec
from peer.run.home import RunFolder

ELEMENTS = 2**16
RUN = RunId(b"r" * 32)
FACTS = KeptFacts(3, 7, None, (), "")


def is_shared_with_a_file(values: torch.Tensor) -> bool:
    """Return whether the values lie in a shared mapping of a file, which takes no memory of its own."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        ends, permissions, _, _, inode, *_ = line.split()
        first, last = (int(end, 16) for end in ends.split("-"))
        if first <= values.data_ptr() < last:
            return permissions.endswith("s") and inode != "0"
    raise AssertionError("no mapping holds these values")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("momentum", [False, True])
def test_a_loaded_state_takes_no_memory_of_the_node(tmp_path: Path, momentum: bool) -> None:
    layout = Layout.whole([TensorSpec("w", (ELEMENTS,))])
    archive = StateArchive(RunFolder(tmp_path), RUN, layout, pytest.fail, momentum=momentum)
    params = torch.randn(ELEMENTS)
    kept = archive.accept(archive.propose(params, -params if momentum else None, FACTS), 1.5)
    state = archive.load(kept)
    assert torch.equal(state.params, params)
    assert torch.equal(state.momentum, -params if momentum else torch.zeros(ELEMENTS))
    assert not is_shared_with_a_file(params)
    assert is_shared_with_a_file(state.params)
    if momentum:
        assert is_shared_with_a_file(state.momentum)


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("no_collector")
def test_a_donated_state_goes_with_its_last_reference() -> None:
    """Otherwise the garbage collector would free a large state in the middle of any task."""
    layout = Layout.whole([TensorSpec("w", (8,))])
    outer = OuterState.fresh(layout, torch.zeros(8))
    gone, state = weakref.ref(outer.params), [DonatedState(outer, lambda: 0, lambda: 0.0, momentum=True)]
    assert state[0].on_state(False, "") is not None
    del outer
    state.clear()
    assert gone() is None


class Nobody:
    """An empty directory."""

    async def peers(self) -> dict[PeerId, PeerRecord]:
        return {}


@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("momentum", [False, True])
def test_a_fetched_state_goes_when_it_is_let_go(tmp_path: Path, momentum: bool) -> None:
    async def test() -> None:
        network, clock = Network(), VirtualClock()
        layout, node, donor = Layout.whole([TensorSpec("w", (8,))]), PeerId("node"), PeerId("donor")
        handler = RequestHandler()
        state = DonatedState(OuterState.fresh(layout, torch.ones(8)), lambda: 3, clock.now, momentum=momentum)
        handler.register(state=state)
        MemoryTransport(network, donor, handler, clock)
        record = PeerRecord(donor, RUN, (), True, 1, 1, 3, 5.0, Status.TRAINING, 0.0, 1e12)
        context = JoinContext(
            run_id=RUN,
            me=node,
            directory=cast(Any, Nobody()),
            transport=MemoryTransport(network, node, RequestHandler(), clock),
            clock=clock,
            say=pytest.fail,
            rng=random.Random(0),
        )
        found = await StateCollector(context, layout, tmp_path / "fetched", inline, momentum=momentum).collect([record])
        assert isinstance(found, Collected)
        assert found.params is not None
        assert torch.equal(found.params, torch.ones(8))
        tensors = [weakref.ref(values) for values in (found.params, found.momentum) if values is not None]
        found.release()
        assert [one() for one in tensors] == [None] * (2 if momentum else 1)

    run_virtual(test())
