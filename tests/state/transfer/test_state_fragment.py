from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from peer.errors import BadPayload, PartnerRefused
from peer.outer.state import OuterState
from peer.protocol.messages import PeerId, PeerRecord, RunId, Status
from peer.protocol.model.layout import Layout, TensorSpec
from peer.state.transfer import fragment as fragments
from peer.state.transfer.fragment import FragmentServer, fetch_fragment, name_of, part_sizes

LAYOUT = Layout((TensorSpec("a", (30,)), TensorSpec("b", (50,))), ((0, 1), (1, 2)))
DONOR = PeerRecord(PeerId("donor"), RunId(b"r" * 32), ("x:1",), True, 1, 1, 0, 0.0, Status.TRAINING, 0.0, 60.0)


def state() -> OuterState:
    outer = OuterState.fresh(LAYOUT, torch.linspace(-1, 1, 80))
    outer.momentum.copy_(torch.linspace(2, 3, 80))
    return outer


def shelf(outer: OuterState, held: dict[int, bytes]) -> FragmentServer:
    return FragmentServer(outer, lambda fragment: held.get(fragment, b""))


class Transport:
    """Fetches from a `FragmentServer` in this process."""

    def __init__(self, shelf: FragmentServer) -> None:
        self.shelf = shelf
        self.parts = 0

    async def fetch_part(self, donor: PeerRecord, snapshot: str, part: int, nbytes: int, timeout_s: float) -> bytes:
        self.parts += 1
        data = self.shelf.on_piece(snapshot, part)
        if data is None:
            raise PartnerRefused("gone", "another state by now")
        assert len(data) == nbytes
        return bytes(data)


def fetch(transport: Transport, fragment: int, digest: bytes) -> tuple[torch.Tensor, torch.Tensor]:
    elements = LAYOUT.fragment_elements(fragment)
    return asyncio.run(fetch_fragment(transport, DONOR, fragment, digest, elements, lambda nbytes: 1.0))


def test_a_fragment_comes_over_bit_for_bit_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fragments, "PIECE_BYTES", 128)
    outer = state()
    digest = outer.digest(1)
    transport = Transport(shelf(outer, {1: digest}))
    params, momentum = fetch(transport, 1, digest)
    assert torch.equal(params, outer.params[30:])
    assert torch.equal(momentum, outer.momentum[30:])
    assert transport.parts == len(part_sizes(50)) == 4


def test_what_was_begun_can_be_ended_although_the_state_moves_on() -> None:
    outer = state()
    digest, held = outer.digest(0), {0: outer.digest(0)}
    on = shelf(outer, held)
    before = bytes(on.on_piece(name_of(0, digest), 0) or b"")
    outer.params.add_(1)
    held[0] = outer.digest(0)
    assert bytes(on.on_piece(name_of(0, digest), 0) or b"") == before
    assert on.on_piece(name_of(0, held[0]), 0) is not None
    assert on.on_piece(name_of(0, digest), 0) is None


def test_a_copy_is_made_beside_the_loop_and_in_a_file_without_a_name(tmp_path: Path) -> None:
    outer, begun = state(), list[tuple[Callable[[], object], Future[Any]]]()

    def start(work: Callable[[], object]) -> Future[Any]:
        begun.append((work, Future()))
        return begun[-1][1]

    digest = outer.digest(0)
    name, on = name_of(0, digest), FragmentServer(outer, lambda fragment: digest, start, tmp_path)
    assert on.on_piece(name, 0) is None
    assert on.making(name) is begun[0][1]
    assert len(begun) == 1, "one copy at a time"
    begun[0][1].set_result(begun[0][0]())
    assert on.making(name) is None
    assert len(on.on_piece(name, 0) or b"") == 8 * 30
    assert not list(tmp_path.iterdir())


def test_a_copy_that_a_step_spoilt_is_made_again() -> None:
    outer, steps = state(), [True, False]

    def start(work: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        with outer.stepping() if steps.pop(0) else nullcontext():
            future.set_result(work())
        return future

    on = FragmentServer(outer, lambda fragment: outer.digest(fragment), start)
    assert on.on_piece(name_of(0, outer.digest(0)), 0) is None
    assert on.on_piece(name_of(0, outer.digest(0)), 0) is not None


def test_only_the_state_held_now_is_given() -> None:
    outer = state()
    digest = outer.digest(0)
    assert shelf(outer, {}).on_piece(name_of(0, digest), 0) is None, "not said to be held"
    assert shelf(outer, {0: b"x" * 32}).on_piece(name_of(0, b"x" * 32), 0) is None, "said wrongly"
    assert shelf(outer, {0: digest}).on_piece(name_of(0, digest), 1) is None, "no such part"
    assert shelf(outer, {0: digest}).on_piece("fragment:", 0) is None
    with outer.stepping():
        assert shelf(outer, {0: digest}).on_piece(name_of(0, digest), 0) is None, "a step is under way"


@pytest.mark.parametrize("wrong", ["value", "not_finite"])
def test_another_fragment_than_promised_is_refused(wrong: str) -> None:
    outer = state()
    promised = outer.digest(0)
    if wrong == "not_finite":
        outer.params[3] = float("nan")
        promised = outer.digest(0)
    on = shelf(outer, {0: promised})

    class Liar(Transport):
        async def fetch_part(self, donor: PeerRecord, snapshot: str, part: int, nbytes: int, timeout_s: float) -> bytes:
            data = bytearray(await super().fetch_part(donor, snapshot, part, nbytes, timeout_s))
            if wrong == "value":
                data[0] ^= 1
            return bytes(data)

    with pytest.raises(BadPayload) as caught:
        fetch(Liar(on), 0, promised)
    assert caught.value.code == ("digest" if wrong == "value" else "not_finite")


def test_a_shelf_holds_one_copy_and_makes_no_other() -> None:
    elements = 2**18
    layout = Layout((TensorSpec("a", (elements,)), TensorSpec("b", (elements,))), ((0, 1), (1, 2)))
    outer = OuterState.fresh(layout, torch.ones(2 * elements))
    giving = FragmentServer(outer, lambda fragment: outer.digest(fragment))
    names = [name_of(fragment, outer.digest(fragment)) for fragment in range(2)]
    tracemalloc.start()
    try:
        for name in names:
            assert giving.on_piece(name, 0) is not None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 0.1 * 8 * elements, "a copy lies in pages of its own"
