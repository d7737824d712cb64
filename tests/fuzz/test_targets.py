"""Runs every fuzz target briefly, with the same inputs each time. `make fuzz` runs them for longer."""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from random import Random

import pytest

from peer.signed_record import seal
from tests.fuzz import engine
from tests.fuzz.engine import Hang, Outcome, Target, fuzz, input_at, verdict_of
from tests.fuzz.mutate import mutate
from tests.fuzz.proto import bytes_of, fields_of
from tests.fuzz.targets import MAKERS, target
from tests.fuzz.wire import OWNER, RECORD

INPUTS = {"checkpoint": 400, "journal": 1500}
"""Where 2000 would take too long."""


@pytest.fixture(autouse=True)
def _alarm() -> Iterator[None]:
    """Restore the timer's signal handler and the logging level after a test."""
    before = signal.getsignal(signal.SIGPROF)
    engine.prepare()
    yield
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.signal(signal.SIGPROF, before)
    logging.disable(logging.NOTSET)


def text_target(run: object, **more: object) -> Target:
    return Target(name="x", run=run, corpus=(b"valid",), refuses=(ValueError,), **more)  # type: ignore[arg-type]


def never(raw: bytes) -> None:
    raise AssertionError("a target of a test")


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_only_typed_refusals_leave_it(name: str) -> None:
    outcome = fuzz(target(name), seed=3, count=INPUTS.get(name, 2000))
    assert outcome.findings == []
    assert outcome.inputs == INPUTS.get(name, 2000)
    assert outcome.accepted > 0, "no input got through: the mutations are too coarse to find anything"


@pytest.mark.parametrize("name", sorted(MAKERS))
def test_its_inputs_are_a_function_of_name_seed_and_index(name: str) -> None:
    made = target(name)
    assert made.name == name
    assert [input_at(made, 3, index) for index in range(50)] == [input_at(made, 3, index) for index in range(50)]
    assert input_at(made, 3, 7) != input_at(made, 4, 7)
    assert all(
        len(mutate(Random(n), made.corpus, made.tokens, made.limit, made.special)) <= made.limit for n in range(50)
    )


def test_what_is_not_a_typed_refusal_is_found_once_with_its_bytes() -> None:
    def run(raw: bytes) -> None:
        if raw != b"valid":
            {b"": 0}[raw + b"x"]

    outcome = fuzz(text_target(run), seed=1, count=100)
    assert [finding.what[:9] for finding in outcome.findings] == ["KeyError:"]
    first = outcome.findings[0]
    assert bytes.fromhex(first.data) == input_at(text_target(run), 1, first.index)
    assert outcome.refused["FOUND KeyError"] + outcome.accepted == 100
    assert Outcome.from_json(outcome.to_json()) == outcome


def test_a_hang_is_found_although_the_decoder_catches_exceptions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "HANG_S", 0.05)

    def run(raw: bytes) -> None:
        while raw != b"valid":
            try:
                sum(range(100))
            except Exception as error:  # as a decoder might
                raise ValueError from error

    outcome = fuzz(text_target(run), seed=1, count=3)
    assert outcome.findings[0].what.startswith(Hang.__name__)
    assert outcome.slowest_ms > 40


def test_memory_that_grows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    peaks = iter([100.0, 100.0, 100.0 + engine.GROWTH_MIB + 1])
    monkeypatch.setattr(engine, "_peak_mib", lambda: next(peaks))
    outcome = fuzz(text_target(lambda raw: None), seed=1, count=32)
    assert [finding.index for finding in outcome.findings] == [16]
    assert "memory grew by 65 MiB" in outcome.findings[0].what


def test_a_target_that_refuses_its_corpus_is_told() -> None:
    with pytest.raises(AssertionError, match="a target of a test"):
        fuzz(text_target(never), seed=1, count=1)


def test_a_refusal_is_named_with_its_code() -> None:
    assert verdict_of(target("frame"), b"") == "BadPayload:frame"
    assert verdict_of(target("frame"), target("frame").corpus[0]) == ""


def test_messages_are_taken_apart_and_put_together_again() -> None:
    raw = seal(RECORD, OWNER)
    fields = fields_of(raw)
    assert fields is not None
    assert [number for number, _, _ in fields] == [1, 2, 3]
    assert bytes_of(fields) == raw
    assert fields_of(b"\x0a\xff\xff\xff\xff\x0f") is None
