"""The description of a method and its cost: rows of (name, value, remark)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from peer.run.costs import Cost
from peer.run.memory import MemoryNeed
from peer.run.method import Method
from peer.run.presets import sources
from peer.run.sections import SyncSection

Row = tuple[str, str, str]
WITH_GROUPS = ("result_codec", "max_group", "founders")
"""Choices that there are with groups only."""


def method_rows(sync: SyncSection) -> Iterator[Row]:
    """Return every choice and its source: the preset, the manifest, or the consequence of other choices (`default`)."""
    yield "preset", sync.preset, ""
    for name, value, source in sources(sync):
        yield name, "none" if name in WITH_GROUPS and not value else _value(value), source


def memory_rows(cost: Cost, need: MemoryNeed) -> Iterator[Row]:
    """Return the memory of one peer: the daemon's own, what it shares with the trainer, and the trainer's."""
    parts = {"libraries": cost.base_bytes, "outer_momentum": cost.momentum_bytes}
    parts |= {"a partner's values": cost.buffer_bytes, "an exchange": cost.payload_bytes}
    yield "memory of the daemon", _mib(need.daemon), ", ".join(f"{k} {_mib(v)}" for k, v in parts.items() if v)
    yield "of the arena", _mib(need.shared), "outer_params and snapshots, a file that daemon and trainer map"
    yield "of the trainer", _mib(need.trainer), "on the CPU in fp32, one window at a time; more where there is room"


def cost_rows(method: Method, cost: Cost) -> Iterator[Row]:
    """Return the costs of one peer on the wire, each way. MB are millions of bytes, MiB of memory 2**20."""
    yield "parameters", f"{cost.parameters:,}", ""
    if method.topology == "solo":
        yield "each way a round", "0 MB", "nothing crosses the wire"
    else:
        yield "each way a round", _mb(max(cost.fragment_bytes)), _what_crosses(method, cost)
        if method.fragments > 1:
            yield "each way a sync", _mb(cost.bytes_per_sync), f"all {method.fragments} fragments"
        if cost.bytes_per_hour is not None:
            yield "each way an hour", _mb(cost.bytes_per_hour), ""
        yield from _rate(method, cost)


def _what_crosses(method: Method, cost: Cost) -> str:
    largest = "the largest fragment, " if method.fragments > 1 else ""
    if method.topology == "group":
        return f"{largest}{cost.peers} peers: pseudo-gradients {method.codec}, results {method.result_codec}"
    return f"{largest}{'params' if method.vectors == 1 else 'params and outer_params'} in {method.codec}"


def _rate(method: Method, cost: Cost) -> Iterator[Row]:
    """Return the link rate that brings the result in time."""
    if not cost.peak_within:
        return
    until = "the earliest merge" if method.fragment_sync_delay else "the window in which the trainer waits"
    if cost.peak_bits_per_s is None:
        per_step = max(cost.fragment_bytes) / cost.peak_within
        yield "each way at peak", f"{_mb(per_step)} an inner step", f"in {cost.peak_within:g} inner steps, {until}"
    else:
        rate = f"{cost.peak_bits_per_s / 1e6:.2f} Mbit/s"
        yield "each way at peak", rate, f"within {cost.peak_within:g} s, {until}"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _mb(nbytes: float) -> str:
    return f"{nbytes / 1e6:.2f} MB" if nbytes < 1e8 else f"{nbytes / 1e6:,.0f} MB"


def _mib(nbytes: int) -> str:
    return f"{nbytes / 2**20:,.1f} MiB"
