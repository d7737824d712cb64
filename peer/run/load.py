"""Computes the load of a run on a line: bytes per hour, and the largest payload."""

from __future__ import annotations

import math
from dataclasses import replace

from peer.methods.method import Method
from peer.protocol.policy.fitness import Load
from peer.protocol.policy.upload_quota import DAY_S, UploadLimits, UploadNeed, control_rate, on_the_line, quota_excess
from peer.run.costs import cost_of
from peer.run.manifest import Manifest


def upload_need(manifest: Manifest, method: Method) -> UploadNeed | None:
    """Return the upload of the run in a day. None: rounds are in inner steps, or nothing is exchanged."""
    cost = cost_of(manifest.model, method)
    if cost.bytes_per_hour is None or not method.exchanges:
        return None
    return UploadNeed(
        on_the_line(max(cost.fragment_bytes), 0),
        on_the_line(24 * math.ceil(cost.bytes_per_hour), 0),
        method.sync_every,
        control_of(method),
    )


def control_of(method: Method) -> float:
    """Return the bytes per second of control traffic that an upload quota reserves."""
    return control_rate(method.round_length if method.clock == "seconds" else None)


def bytes_a_day(method: Method, sync_bytes: int, sync_s: float | None = None) -> int | None:
    """Return the estimated bytes per day on the line, each way: payload, headers and control traffic. The contract,
    `peer doctor` and `peer plan` show this number.

    `sync_bytes`: payload each way between two exchanges of all fragments. `sync_s`: seconds between them. None: the
    round clock's. Returns None when rounds are in inner steps of unknown duration."""
    if not method.exchanges:
        return round(control_of(method) * DAY_S)
    if sync_s is None:
        if method.clock != "seconds":
            return None
        sync_s = method.sync_every
    return on_the_line(math.ceil(sync_bytes * DAY_S / sync_s), 0) + round(control_of(method) * DAY_S)


def codec_refusal(codec: str, manifest: Manifest, method: Method, limits: UploadLimits) -> str:
    """Return why the upload limits are too small for the run with this codec. Empty: they suffice."""
    need = upload_need(manifest, replace(method, codec=codec))
    return "" if need is None else quota_excess(limits, need)


def line_load(manifest: Manifest, method: Method) -> Load | None:
    """Return the load of the run on a link. None: rounds are in inner steps, or nothing is exchanged."""
    if method.clock != "seconds" or not method.exchanges:
        return None
    return Load(
        nbytes=max(cost_of(manifest.model, method).fragment_bytes),
        round_s=method.round_length,
        again_s=method.sync_every,
        waits=method.waits,
        alone="solo" if method.paired else "dropped",
    )
