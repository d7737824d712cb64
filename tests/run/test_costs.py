from __future__ import annotations

from typing import Any

import pytest

from peer.methods.codec_specs import FORMS, joined_nbytes
from peer.protocol.group.shards import cut
from peer.protocol.messages import PeerId
from peer.protocol.model.fragments import block_spans
from peer.run.costs import DAEMON_BASE, cost_of, exchange_bytes, largest_payload
from peer.run.description import cost_rows, memory_rows, method_rows
from peer.run.memory import MemoryNeed
from peer.run.model_layout import layout_for
from peer.run.resolve import resolve
from peer.run.sections import LlamaSection, SyncSection

MODEL = LlamaSection()
PARAMETERS = MODEL.parameters


def costs(**options: Any) -> Any:
    return cost_of(MODEL, resolve(SyncSection.model_validate(options)))


def test_a_pair_sends_its_params() -> None:
    cost = costs(codec="bf16", sync_every=100)
    assert cost.fragment_bytes == (2 * PARAMETERS,)
    assert cost.bytes_per_hour == 36 * 2 * PARAMETERS
    assert (cost.peak_within, cost.peak_bits_per_s) == (25, 8 * 2 * PARAMETERS / 25)


def test_a_consensus_of_its_own_doubles_the_bytes() -> None:
    assert costs(consensus=0.5).fragment_bytes == (4 * PARAMETERS,)


def test_fragments_change_the_peak_and_not_the_sum() -> None:
    cost = costs(preset="streaming-noloco", sync_every=300)
    assert cost.fragment_bytes == (2 * 117_056, 2 * 100_608)
    assert cost.bytes_per_sync == 2 * PARAMETERS
    assert cost.bytes_per_hour == 12 * 2 * PARAMETERS
    assert cost.peak_bits_per_s == 8 * 2 * 117_056 / 5


def test_a_group_sends_its_share_of_contributions_and_results() -> None:
    method = resolve(SyncSection(preset="diloco"))
    assert exchange_bytes(method, 16_000, 16) == 2 * 4 * 16_000 * 15 // 16
    assert exchange_bytes(method, 16_000, 2) == 2 * 4 * 16_000 // 2
    quantized = resolve(SyncSection(preset="streaming-diloco"))
    shard = 16_384 // 8  # whole blocks of 128: int4 is 64 + 4 bytes a block
    assert exchange_bytes(quantized, 16_384, 8) == 7 * (68 * shard // 128 + 132 * shard // 128)
    assert costs(preset="diloco", max_group=4).peers == 4


@pytest.mark.parametrize(("peers", "bits"), [(2, 0.35), (8, 1.85), (16, 2.88)])
def test_a_sparse_result_takes_few_bits_of_a_parameter(peers: int, bits: float) -> None:
    """The full cost is 2.11 bits per parameter with 8 peers and 3.07 with 16. The expected values are lower, because an
    owner does not send its own part."""
    method = resolve(SyncSection(preset="sparseloco"))
    assert 8 * exchange_bytes(method, 10**8, peers) / 10**8 == pytest.approx(bits, abs=0.01)
    dense = resolve(SyncSection(preset="sparseloco", result_codec="fp16"))
    assert 8 * exchange_bytes(dense, 10**8, peers) / 10**8 > 16 * (peers - 1) / peers


def test_at_the_socket_frames_and_messages_are_added() -> None:
    pair, group = costs(preset="noloco", codec="bf16"), costs(preset="diloco", max_group=4)
    assert pair.socket_bytes == (round(1.003 * 2 * PARAMETERS) + 600,)
    assert group.socket_bytes == (round(1.003 * 6 * PARAMETERS) + 3 * 1800,)
    assert costs(preset="snoo").socket_bytes == (0,)


def test_shards_that_end_with_tensors_cost_the_same_on_average() -> None:
    method = resolve(SyncSection(preset="streaming-diloco", mean="rda"))
    layout, names = layout_for(MODEL, method), [PeerId(f"p{number}") for number in range(16)]
    contributed, given = (FORMS[name].nbytes for name in (method.codec, method.result_codec))
    for fragment, told in enumerate(costs(preset="streaming-diloco", mean="rda").fragment_bytes):
        whole = block_spans(layout, fragment)
        shards = cut(b"roster", names, layout.fragment_elements(fragment), whole=whole)
        sent = sum(contributed(shard.elements) for shard in shards for name in names if name != shard.owner)
        sent += sum(15 * given(shard.elements) for shard in shards)
        assert told == pytest.approx(sent / 16, rel=0.01)


def test_a_larger_shard_is_held() -> None:
    shard, elements = 2 * 176 * 64, PARAMETERS  # two matrices
    equal, larger = (costs(preset="diloco", mean=mean).payload_bytes for mean in ("weighted", "rda"))
    assert larger - equal == 4 * 15 * (shard - -(-elements // 16))
    assert rows(preset="diloco", mean="rda")["each way a round"][1].endswith("results fp32, on average")
    assert rows(preset="diloco")["each way a round"][1].endswith("results fp32")


def test_nothing_crosses_for_the_control() -> None:
    cost = costs(preset="none")
    assert (cost.fragment_bytes, cost.bytes_per_hour, cost.peak_bits_per_s) == ((0,), 0, 0)
    assert (cost.buffer_bytes, cost.payload_bytes) == (0, 0)  # the outer step uses the peer's own values in place


def test_a_clock_in_steps_knows_no_seconds() -> None:
    cost = costs(preset="streaming-noloco", clock="steps", sync_every=20)
    assert (cost.bytes_per_hour, cost.peak_bits_per_s, cost.peak_within) == (None, None, 5)
    assert costs(clock="steps", sync_every=20).peak_within == 0


def test_memory_is_the_sum_of_what_is_held() -> None:
    cost = costs(codec="bf16")
    assert (cost.arena_bytes, cost.momentum_bytes) == (8 * PARAMETERS, 4 * PARAMETERS)
    assert (cost.buffer_bytes, cost.payload_bytes) == (4 * PARAMETERS, (2 + 2) * PARAMETERS)
    assert cost.daemon_bytes == DAEMON_BASE + 12 * PARAMETERS
    assert cost.memory_bytes == DAEMON_BASE + 20 * PARAMETERS
    assert costs(preset="none").momentum_bytes == 0, "its rule has none"
    streamed = costs(preset="streaming-noloco")
    assert (streamed.buffer_bytes, streamed.payload_bytes) == (4 * 117_056, 4 * 117_056)
    assert costs(consensus=0.5).buffer_bytes == 8 * PARAMETERS
    shard = PARAMETERS // 4
    group = costs(preset="diloco", max_group=4)
    assert (group.buffer_bytes, group.payload_bytes) == (4 * PARAMETERS, 3 * 4 * shard + 2 * 3 * 8 * shard)


@pytest.mark.parametrize(("codec", "mb"), [("bf16", 20), ("modulo7", 50)])
def test_of_a_payload_that_is_made_as_it_goes_only_a_part_is_held(codec: Any, mb: int) -> None:
    large = LlamaSection(hidden_size=512, intermediate_size=1408, num_hidden_layers=20, num_attention_heads=8)
    cost = cost_of(large, resolve(SyncSection(codec=codec)))
    assert cost.payload_bytes == pytest.approx(1e6 * mb, rel=0.01)


@pytest.mark.parametrize(
    ("preset", "nbytes"),
    [
        ("noloco", -(-7 * PARAMETERS // 8) + 4 * -(-PARAMETERS // 128)),
        ("streaming-noloco", 2 * 117_056),
        ("diloco", 4 * PARAMETERS),
        ("streaming-diloco", 117_056 + 4 * -(-117_056 // 128)),
        ("sparseloco", joined_nbytes(PARAMETERS, 16 * 64 * 54)),
        ("none", 0),
    ],
)
def test_the_largest_payload_is_a_whole_fragment_of_the_wider_codec(preset: Any, nbytes: int) -> None:
    method = resolve(SyncSection(preset=preset))
    assert largest_payload(method, layout_for(MODEL, method)) == nbytes


def rows(**options: Any) -> dict[str, tuple[str, str]]:
    sync = SyncSection.model_validate(options)
    method = resolve(sync)
    cost = cost_of(MODEL, method)
    need = MemoryNeed(cost.daemon_bytes, 2**30, cost.arena_bytes)
    told = [*method_rows(sync), *cost_rows(method, cost), *memory_rows(cost, need)]
    return {name: (value, remark) for name, value, remark in told}


def test_the_cost_is_told() -> None:
    told = rows(sync_every=60, codec="bf16")
    assert told["each way a round"] == ("435 kB", "params in bf16")
    assert told["at the socket"] == ("437 kB", "with frames, encryption and the round's messages, estimated")
    assert told["each way an hour"] == (
        "26.1 MB",
        "of payload, by arithmetic: the size of a payload follows from its codec",
    )
    assert told["each way at peak"] == ("0.23 Mbit/s", "within 15 s, the window in which the trainer waits")
    value, parts = told["memory of the daemon"]
    assert value == "202 MB"
    assert parts == "estimated: libraries 199 MB, outer_momentum 871 kB, a partner's values 871 kB, an exchange 871 kB"
    assert (told["of the arena"][0], told["of the trainer"][0]) == ("1.74 MB", "1.07 GB")
    assert told["max_group"] == ("none", "preset")
    streamed = rows(preset="streaming-diloco", clock="steps", sync_every=20)
    assert streamed["each way at peak"] == ("34.3 kB an inner step", "in 5 inner steps, the earliest merge")
    assert streamed["each way a sync"][1] == "all 2 fragments"
    assert "each way an hour" not in streamed
    alike = "of peers that choose independently. Alike choices take less"
    assert rows(preset="sparseloco")["each way a round"][1].endswith(alike)
    assert alike not in rows(preset="sparseloco", max_group=4)["each way a round"][1]
    assert rows(preset="none")["each way a round"] == ("0 MB", "nothing crosses the wire")


def test_every_choice_is_told_with_who_made_it() -> None:
    told = rows(preset="streaming-diloco", fragment_update_alpha=0.0, max_group=8)
    assert told["fragment_layout"] == ("strided", "preset")
    assert told["fragment_update_alpha"] == ("0", "manifest")
    assert told["max_group"] == ("8", "manifest")
    assert told["outer_momentum"] == ("0.5", "preset")
