"""The arithmetic of the scripts in benchmarks/, without running them."""

from __future__ import annotations

import asyncio
import time

import pytest

from benchmarks import chaos, codecs, exchange, growth, interference, loop_stalls
from benchmarks.homelink import Line, Link, fullest, rate_of, relay
from peer.run.schema import parse_manifest


def test_the_fullest_window_is_found_wherever_it_lies() -> None:
    passed = [(0.0, 10), (1.0, 10), (2.5, 30), (3.0, 30), (4.4, 30), (9.0, 50)]

    assert fullest(passed, 2.0) == 90
    assert fullest(passed, 0.1) == 50
    assert fullest([], 2.0) == 0


def test_a_rate_is_that_of_the_middle() -> None:
    """The first and last bytes are left out, including a straggler at the end."""
    passed = [(10.0 + 0.01 * number, 100) for number in range(101)] + [(60.0, 10)]

    assert rate_of(passed) == pytest.approx(10_000.0)


def test_a_link_takes_its_time_and_changes_nothing() -> None:
    """60 kB at 200 kB/s take 0.3 s plus the delay; the short answer takes only the delay."""

    async def call() -> tuple[bytes, float, float]:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.read(-1))
            writer.close()
            await writer.wait_closed()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        host, port = server.sockets[0].getsockname()
        there, back = Link(Line(200_000.0, 0.05)), Link(Line(1e9, 0.05))
        async with relay(f"{host}:{port}", there, back) as where:
            near, _, outside = where.rpartition(":")
            reader, writer = await asyncio.open_connection(near, int(outside))
            began = time.monotonic()
            writer.write(bytes(range(256)) * 240)
            writer.write_eof()
            heard = await reader.read(-1)
            took = time.monotonic() - began
            writer.close()
            await writer.wait_closed()
        server.close()
        await server.wait_closed()
        return heard, took, sum(nbytes for _, nbytes in there.passed)

    heard, took, passed = asyncio.run(call())

    assert heard == bytes(range(256)) * 240
    assert passed == len(heard)
    assert took >= len(heard) / 200_000.0 + 0.1 - 0.01


def test_rounds_that_averaged_nothing_are_no_result() -> None:
    averagers = exchange.Averagers([])
    rows = [(9.0, 0.0), (1.0, 0.0), (0.1, 1.0), (3.0, 1e-4)]
    averagers.rounds = [{"seconds": s, "cpu_seconds": s, "error": error} for s, error in rows]
    assert averagers.row() == {"seconds": 2.0, "cpu_seconds": 2.0, "turns": 2, "wrong": 1}

    averagers.rounds = [{"seconds": 0.1, "cpu_seconds": 0.1, "error": 1.0}] * 3
    assert averagers.row() == {"note": "no round of 2 averaged anything"}


def test_a_library_that_is_not_installed_has_no_ratio() -> None:
    rates = {"int8 encode": 20.0, "int8 decode": 10.0, "torchao int8 per 256 encode": 4.0}

    found = codecs.ratios(rates)

    assert found["torchao int8 per 256"] == {"encode": 5.0, "decode": None}
    assert found["bitsandbytes 8 bit"] == {"encode": None, "decode": None}


def test_the_shapes_are_as_large_as_they_say() -> None:
    for mb, shape in growth.SHAPES.items():
        model = parse_manifest(growth.manifest_of(shape, 10.0).encode()).model
        assert 4 * model.parameters / 1e6 == pytest.approx(mb, rel=0.15)


def test_only_rounds_since_the_beginning_count() -> None:
    before, after = (
        [{"due": 4, "exchanged": 1}, {}],
        [{"due": 7, "exchanged": 3, "solo": 1}, {"due": 3, "exchanged": 3}],
    )

    assert growth._more(before, after, "due") == 6
    assert growth._more(before, after, "exchanged") == 5


def test_stalls_of_both_ends_and_all_turns_count() -> None:
    turns = [
        [{"late_ms": [0.1, 0.2], "seconds": 1.0}, {"late_ms": [0.1, 30.0], "seconds": 2.0}],
        [{"late_ms": [0.3, 0.2], "seconds": 1.0}, {"late_ms": [0.1, 0.1], "seconds": 1.0}],
    ]

    row = loop_stalls.row(turns)

    assert row["worst_ms"] == 30.0
    assert row["worst_median_ms"] == pytest.approx((30.0 + 0.3) / 2)
    assert row["over_wanted"] == 1
    assert row["seconds"] == 1.5


def test_the_model_of_the_interference_is_one_that_a_manifest_takes() -> None:
    from peer.run.manifest import default_text, derive

    assert parse_manifest(derive(default_text(), interference.MODEL).encode()).model.parameters > 3e6


def test_a_group_that_ends_with_two_states_breaks_its_bound_and_so_does_a_worse_loss() -> None:
    book = {"processed": 10, "applied": 6, "dropped": 3, "outstanding": 1}
    swarm = {"participation": 0.95, "rounds_ended_in_time": 0.9, "ledger": book}
    peers = [{"exit_code": 0, "killed": False, "outer_digest": digest} for digest in ("a", "b")]
    curves = [[(0.0, 3.0), (10.0, loss)] for loss in (2.06, 2.0)]
    chaotic, calm = ({"swarm": swarm, "peers": peers, "hung": [], "curve": curve} for curve in curves)

    found = {figure.name: figure for figure in chaos.figures(chaotic, calm, group=True)}

    broken = {name for name, figure in found.items() if figure.holds is False}
    assert broken == {"rounds that ended in time", "states at the end of the group", "loss beyond the control's"}
    assert found["loss beyond the control's"].value == pytest.approx(3.0)
    assert found["ledger, off by"].value == 0
