"""Runs one fuzz target over seeded inputs and measures it. Inputs are a function of (target, seed, index), so these
three reproduce a finding."""

from __future__ import annotations

import logging
import resource
import signal
import sys
import traceback
import zlib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from time import perf_counter, process_time
from types import FrameType
from typing import Any

from tests.fuzz.mutate import Change, mutate

HANG_S = 1.0
"""Processor time of one input; more is a finding."""
GROWTH_MIB = 64.0
"""Resident memory over what it was after the corpus; more is a finding."""
MAX_FINDINGS = 20


@dataclass(frozen=True, kw_only=True)
class Target:
    """A decoder as a function of bytes, with its corpus and its expected errors."""

    name: str
    run: Callable[[bytes], None]
    """Decodes an input. An AssertionError, or any exception that is not in `refuses`, is a finding."""
    corpus: tuple[bytes, ...]
    """Valid inputs, which `run` must accept."""
    refuses: tuple[type[Exception], ...] = ()
    tokens: tuple[bytes, ...] = ()
    """Pieces worth inserting."""
    mend: Callable[[bytes], bytes] | None = None
    """Corrects checksums and signatures. Applied to half of the inputs, so that the code behind these checks is
    reached."""
    special: Change | None = None
    """A mutation that knows the format."""
    limit: int = 4096
    """Largest size of an input in bytes."""


@dataclass(frozen=True)
class Finding:
    index: int
    data: str
    """Hex."""
    what: str
    where: str


@dataclass
class Outcome:
    """The outcome of many inputs of one target."""

    target: str
    inputs: int = 0
    seconds: float = 0.0
    slowest_ms: float = 0.0
    slowest_index: int = -1
    growth_mib: float = 0.0
    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        findings = [vars(finding) for finding in self.findings]
        return {**vars(self), "refused": dict(self.refused), "findings": findings}

    @classmethod
    def from_json(cls, body: dict[str, Any]) -> Outcome:
        findings = [Finding(**finding) for finding in body.pop("findings")]
        return cls(**{**body, "refused": Counter(body["refused"])}, findings=findings)


class Hang(BaseException):
    """The timeout expired. A BaseException, so that no decoder treats it as bad input."""


def input_at(target: Target, seed: int, index: int, rng: Random | None = None) -> bytes:
    """Return the bytes of the input with this index."""
    rng = rng or Random()
    rng.seed((seed << 72) | (zlib.crc32(target.name.encode()) << 40) | index)
    data = mutate(rng, target.corpus, target.tokens, target.limit, target.special)
    if target.mend is not None and rng.random() < 0.5:
        return target.mend(data)
    return data


def verdict_of(target: Target, data: bytes) -> str:
    """Return `""` if the input is accepted, otherwise the name of the expected error with its code. Raises for a
    finding."""
    signal.setitimer(signal.ITIMER_PROF, HANG_S)
    try:
        target.run(data)
    except target.refuses as refusal:
        code = getattr(refusal, "code", None)
        return f"{type(refusal).__name__.lstrip('_')}:{code}" if isinstance(code, str) else type(refusal).__name__
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return ""


def prepare() -> None:
    """Set up for `verdict_of`: the timer raises Hang, and warnings of decoders are suppressed."""
    signal.signal(signal.SIGPROF, _alarm)
    logging.disable(logging.CRITICAL)


def fuzz(target: Target, seed: int, count: int, seconds: float = float("inf")) -> Outcome:
    """Run `count` inputs from index 0 on, or as many as fit into `seconds`. Main thread only."""
    prepare()
    for valid in target.corpus:
        assert verdict_of(target, valid) == "", f"{target.name} refuses its own corpus: {valid!r}"
    outcome, rng, began, base = Outcome(target.name), Random(), perf_counter(), _peak_mib()
    seen: set[str] = set()
    for index in range(count):
        data = input_at(target, seed, index, rng)
        _one(target, index, data, outcome, seen)
        if not index & 15 and (growth := _peak_mib() - base) > outcome.growth_mib:
            if growth > GROWTH_MIB >= outcome.growth_mib:
                found = f"memory grew by {growth:.0f} MiB at this input or at most 15 before it"
                outcome.findings.append(Finding(index, data.hex(), found, ""))
            outcome.growth_mib = growth
        if perf_counter() - began > seconds or len(outcome.findings) >= MAX_FINDINGS:
            break
    outcome.inputs, outcome.seconds = index + 1, perf_counter() - began
    return outcome


def _one(target: Target, index: int, data: bytes, outcome: Outcome, seen: set[str]) -> None:
    before = process_time()
    try:
        verdict = verdict_of(target, data)
    except (Exception, Hang) as error:  # that is what it is looking for  # noqa: BLE001
        where = _place(error)
        if f"{type(error).__name__} {where}" not in seen:
            seen.add(f"{type(error).__name__} {where}")
            outcome.findings.append(Finding(index, data.hex(), f"{type(error).__name__}: {str(error)[:200]}", where))
        verdict = f"FOUND {type(error).__name__}"
    spent = 1e3 * (process_time() - before)
    if spent > outcome.slowest_ms:
        outcome.slowest_ms, outcome.slowest_index = spent, index
    if verdict:
        outcome.refused[verdict] += 1
    else:
        outcome.accepted += 1


def _alarm(number: int, frame: FrameType | None) -> None:
    raise Hang(f"more than {HANG_S:.0f} s")


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"


def _peak_mib() -> float:
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / 2**20 if sys.platform == "darwin" else peak / 2**10
