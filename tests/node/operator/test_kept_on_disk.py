"""The states of the operator's node lie on the disk, and it holds no memory for them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from peer.node.operator.kept import KeptFacts, StateArchive
from peer.protocol.messages import RunId
from peer.protocol.model.layout import Layout, TensorSpec
from peer.run.home import RunFolder

ELEMENTS = 2**23
FACTS = KeptFacts(3, 7, None, (), "")


def own_memory() -> int:
    """Bytes of this process's own, without the files that it maps."""
    lines = (line.split() for line in Path("/proc/self/status").read_text().splitlines())
    return next(1024 * int(words[1]) for words in lines if words[0] == "RssAnon:")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a process's own memory apart")
@pytest.mark.parametrize("momentum", [False, True])
def test_a_loaded_state_takes_no_memory_of_the_node(tmp_path: Path, momentum: bool) -> None:
    layout = Layout.whole([TensorSpec("w", (ELEMENTS,))])
    archive = StateArchive(RunFolder(tmp_path), RunId(b"r" * 32), layout, pytest.fail, momentum=momentum)
    params = torch.randn(ELEMENTS)
    kept = archive.accept(archive.propose(params, -params if momentum else None, FACTS), 1.5)
    before = own_memory()
    state = archive.load(kept)
    assert torch.equal(state.params, params)
    assert torch.equal(state.momentum, -params if momentum else torch.zeros(ELEMENTS))
    assert own_memory() - before < ELEMENTS, "bytes: a quarter of what the params alone take"
