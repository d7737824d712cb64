from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from peer.errors import ManifestError
from peer.methods.registry import PRESETS
from peer.run.resolve import method_findings
from peer.run.schema import parse_manifest
from peer.run.sections import SyncSection

STEPS = {"clock": "steps", "sync_every": 20}


def found(**options: Any) -> list[tuple[str, str]]:
    findings = method_findings(SyncSection.model_validate(options))
    return [(finding.where[1], finding.message) for finding in findings]


@pytest.mark.parametrize(
    ("options", "field", "words"),
    [
        ({"outer_momentum": 0.9}, "outer_momentum", "diverges"),
        ({"outer_momentum": 0.0, "outer_lr": 2.0}, "outer_momentum", "factor of 1.000"),
        ({"outer_momentum": 0.7, "consensus": 1.1}, "outer_momentum", "diverges"),
        ({"consensus": 0.0}, "consensus", "drift apart"),
        ({"preset": "gasloc", "consensus": 0.0}, "consensus", "drift apart"),
        ({"preset": "gasloc", "outer_momentum": 0.75}, "outer_momentum", "diverges"),
        ({"preset": "diloco", "rule": "gasloc"}, "rule", "share one state"),
        ({"preset": "snoo", "consensus": 0.5}, "consensus", "has no consensus"),
        ({"topology": "group", "codec": "fp32"}, "rule", "share one state"),
        ({"rule": "nesterov"}, "rule", "drift apart"),
        ({"rule": "sgd"}, "rule", "drift apart"),
        ({"preset": "diloco", "consensus": 0.7}, "consensus", "has no consensus"),
        ({"preset": "diloco", "rule": "sgd", "outer_momentum": 0.5}, "outer_momentum", "no momentum"),
        ({"fragments": 2}, "fragments", "one fragment"),
        ({"fragment_layout": "strided"}, "fragment_layout", "cuts nothing"),
        ({"fragments_apart": True}, "fragments_apart", "nothing is set apart"),
        ({"fragment_sync_delay": 1.0}, "fragment_sync_delay", "waits"),
        ({"fragment_update_alpha": 0.5}, "fragment_update_alpha", "nothing is learned"),
        ({"preset": "streaming-noloco", "fragment_sync_delay": 300.0}, "fragment_sync_delay", "not below sync_every"),
        ({"preset": "streaming-noloco", "fragment_layout": "whole"}, "fragment_layout", "not 2"),
        ({"preset": "streaming-noloco", **STEPS, "fragment_sync_delay": 1.5}, "fragment_sync_delay", "whole number"),
        ({"preset": "eager", "fragment_sync_delay": 1.0}, "fragment_sync_delay", "takes its own part at once"),
        ({"preset": "eager", "fragment_update_alpha": 0.5}, "fragment_update_alpha", "takes its own part at once"),
        ({"preset": "streaming-noloco", "eager": True}, "eager", 'topology = "group"'),
        ({"preset": "diloco", "eager": True}, "eager", "at least two fragments"),
        ({"preset": "streaming-noloco", **STEPS, "fragments": 21}, "sync_every", "fewer than the 21 fragments"),
        ({"preset": "streaming-noloco", "fragment_update_alpha": 1.0}, "fragment_update_alpha", "no exchange"),
        ({"preset": "streaming-diloco", "fragment_update_alpha": 1.0}, "fragment_update_alpha", "no exchange"),
        ({"codec": "int8"}, "codec", "fp32, bf16, fp16, modulo7, modulo6"),
        ({"preset": "diloco", "codec": "modulo7"}, "codec", "updates"),
        ({"codec": "topk"}, "codec", "parameters themselves"),
        ({"result_codec": "fp32"}, "result_codec", "only in groups"),
        ({"preset": "diloco", "result_codec": "bf16"}, "result_codec", "narrower"),
        ({"preset": "diloco", "codec": "fp16", "result_codec": "int8"}, "result_codec", "narrower"),
        ({"preset": "streaming-diloco", "result_codec": "int4"}, "result_codec", "a few bits"),
        ({"preset": "diloco", "result_codec": "sparse"}, "result_codec", "in topk"),
        ({"preset": "sparseloco", "result_codec": "topk"}, "result_codec", "a few bits"),
        ({"result_codec": "sparse"}, "result_codec", "only in groups"),
        ({"preset": "diloco", "max_group": 1}, "max_group", "at least 2"),
        ({"max_group": 8}, "max_group", "no groups"),
        ({"preset": "diloco", "founders": 17}, "founders", "at most 16"),
        ({"founders": 2}, "founders", "no groups"),
        ({"weights": "equal"}, "weights", "no groups"),
        ({"preset": "snoo", "weights": "tokens"}, "weights", "no groups"),
        ({"preset": "none", "weights": "equal"}, "weights", "control"),
        ({"mean": "rda"}, "mean", "no groups"),
        ({"preset": "snoo", "mean": "weighted"}, "mean", "no groups"),
        ({"preset": "diloco", "codec": "topk", "mean": "rda"}, "mean", "64th"),
        ({"preset": "sparseloco", "mean": "rda"}, "mean", "64th"),
        ({"preset": "eager", "mean": "rda"}, "mean", "no sum"),
        ({"preset": "diloco", "max_group": 3, "mean": "rda"}, "mean", "takes 4 members"),
        ({"preset": "none", "outer_lr": 0.7}, "outer_lr", "control"),
        ({"preset": "none", "schedule": "streaming"}, "schedule", "control"),
        ({"preset": "none", "topology": "pair"}, "topology", "control"),
    ],
)
def test_what_cannot_be_says_why_and_where(options: dict[str, Any], field: str, words: str) -> None:
    told = found(**options)
    assert [name for name, _ in told] == [field], told
    assert words in told[0][1]


@pytest.mark.parametrize(
    "options",
    [
        *({"preset": name} for name in PRESETS),
        {"preset": "none", "codec": "int4", "outer_lr": 1.0},
        {"consensus": 0.5},
        {"preset": "gasloc", "outer_lr": 0.7, "codec": "modulo7"},
        {"preset": "gasloc", "topology": "solo"},
        {"preset": "snoo", "schedule": "streaming"},
        {"codec": "modulo7"},
        {"outer_momentum": 0.0, "outer_lr": 1.0},
        {"preset": "diloco", "outer_momentum": 0.9},
        {"preset": "diloco", "rule": "sgd", "outer_lr": 1.0},
        {"preset": "diloco", "codec": "topk"},
        {"preset": "diloco", "weights": "equal"},
        {"preset": "sparseloco", "weights": "equal"},
        {"preset": "diloco", "mean": "rda"},
        {"preset": "streaming-diloco", "mean": "rda", "weights": "equal"},
        {"preset": "eager", "mean": "weighted"},
        {"preset": "eager", "weights": "tokens"},
        {"preset": "streaming-diloco", "codec": "topk", "result_codec": "sparse"},
        {"preset": "streaming-diloco", "result_codec": "fp16"},
        {"preset": "streaming-diloco", "codec": "e3m0", "result_codec": "int8"},
        {"preset": "streaming-noloco", "topology": "solo", "fragment_update_alpha": 1.0},
        {"preset": "streaming-noloco", "fragment_sync_delay": 299.0, "fragment_update_alpha": 0.0},
        {"preset": "streaming-noloco", **STEPS, "fragments": 4},
        {"preset": "streaming-noloco", **STEPS, "fragments": 3},
        {"preset": "diloco", "growth_lr": 0.01},
        {"preset": "streaming-diloco", "eager": True},
        {"preset": "eager", "rule": "sgd", "fragments": 3},
        {"schedule": "streaming", "fragments": 1, "fragment_layout": "whole"},
    ],
)
def test_what_can_be_is_let_be(options: dict[str, Any]) -> None:
    assert found(**options) == []


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("outer_lr", 0.0),
        ("outer_lr", 4.5),
        ("outer_momentum", 1.0),
        ("consensus", 2.5),
        ("fragments", 0),
        ("fragments", 1025),
        ("fragment_sync_delay", -1.0),
        ("fragment_sync_delay", float("inf")),
        ("fragment_update_alpha", 1.01),
        ("max_group", 257),
        ("weights", "steps"),
        ("mean", "median"),
        ("codec", "int2"),
        ("result_codec", ""),
        ("fragment_layout", "random"),
        ("topology", "ring"),
        ("rule", "adam"),
        ("schedule", "eager"),
    ],
)
def test_every_choice_is_bounded(field: str, value: object) -> None:
    with pytest.raises(ValidationError):
        SyncSection.model_validate({field: value})


def test_a_manifest_tells_everything_at_once_with_its_lines() -> None:
    text = """format = 3
[model]
num_hidden_layers = 4
[sync]
preset = "streaming-noloco"
clock = "steps"
sync_every = 5
fragments = 6
rule = "nesterov"
codec = "int4"
fragment_sync_delay = 40
fragment_update_alpha = 1
max_group = 1
result_codec = "int8"
"""
    with pytest.raises(ManifestError) as caught:
        parse_manifest(text.encode())
    lines = caught.value.found.splitlines()[1:]
    assert [line.split(",")[0].strip() for line in lines] == [f"line {number}" for number in range(7, 15)]
    assert "5 fragments of complete blocks" in caught.value.found


def test_a_payload_larger_than_the_run_allows_is_found_by_the_largest_fragment() -> None:
    head = "format = 1\n[limits]\nmax_fragment_bytes = 300000\n[sync]\n"
    with pytest.raises(ManifestError, match="435328 bytes"):
        parse_manifest(head.encode())
    parse_manifest((head + 'preset = "streaming-noloco"\n').encode())
    with pytest.raises(ManifestError, match="468224 bytes"):  # 117,056 elements in fp32
        parse_manifest((head + 'preset = "streaming-noloco"\ncodec = "fp32"\n').encode())
