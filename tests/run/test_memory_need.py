from __future__ import annotations

from pathlib import Path

import pytest

from peer.errors import MachineTooSmall
from peer.run.activations import least_window_bytes, window_bytes
from peer.run.manifest import default_text, parse_manifest
from peer.run.memory import MIB, check_memory, free_bytes, memory_need
from peer.run.overrides import apply_overrides
from peer.run.schema import overridden
from peer.run.sections import LlamaSection

MODEL = [
    "hidden_size=512",
    "intermediate_size=1408",
    "num_hidden_layers=12",
    "num_key_value_heads=8",
    "num_attention_heads=8",
]
TRAIN = ["batch=1", "context=8"]
TEXT = apply_overrides(default_text(), [*(f"model.{one}" for one in MODEL), *(f"train.{one}" for one in TRAIN)])
MANIFEST = parse_manifest(TEXT.encode())


def written(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def test_the_estimate_covers_what_was_measured_and_not_much_more() -> None:
    """The peaks were measured on processes of this model and of one with eight layers, while one of them donated."""
    need = memory_need(MANIFEST)
    for estimate, measured in ((need.trainer, 845), (need.shared, 293)):
        assert 0.95 * measured < estimate / MIB < 1.2 * measured
    smaller = apply_overrides(TEXT, ["model.num_hidden_layers=8", "model.num_key_value_heads=8"])
    for preset, measured in (("noloco", 397), ("streaming-diloco", 339)):
        named = [f"sync.preset={preset}", *(["sync.fragments=4"] if preset == "streaming-diloco" else [])]
        manifest = parse_manifest(apply_overrides(smaller, named).encode())
        assert 0.9 * measured < memory_need(manifest).daemon / MIB < 1.1 * measured, preset
    assert memory_need(MANIFEST, trains_here=False).total < need.total - 16 * MANIFEST.model.parameters


def test_a_window_is_counted_in_the_way_that_needs_least() -> None:
    """The trainer first tries the loss in chunks and recomputed layers."""
    model = LlamaSection(vocab_size=32000, hidden_size=384, intermediate_size=1024, num_hidden_layers=8)
    full, least = window_bytes(model, 1024), least_window_bytes(model, 1024)
    assert (round(full / MIB), round(least / MIB)) == (863, 238)
    tiny = LlamaSection()
    assert least_window_bytes(tiny, 8) <= window_bytes(tiny, 8)
    manifest = MANIFEST.model_copy(update={"model": model})
    step = memory_need(manifest).trainer - memory_need(manifest, micro_batch=0).trainer
    assert step == least_window_bytes(model, manifest.train.context)


def test_muon_spares_a_moment_of_the_matrices() -> None:
    muon = parse_manifest(overridden(TEXT, ["optimizer.kind=muon"]).encode())
    blocks = 12 * (4 * 512 * 512 + 3 * 512 * 1408)
    assert memory_need(muon).trainer == memory_need(MANIFEST).trainer - 4 * blocks
    assert memory_need(muon, trains_here=False) == memory_need(MANIFEST, trains_here=False)


def test_the_method_counts() -> None:
    def daemon(**sync: object) -> int:
        named = [f"sync.{name}={value}" for name, value in ({"preset": "noloco"} | sync).items()]
        return memory_need(parse_manifest(apply_overrides(TEXT, named).encode())).daemon

    parameters, pair = MANIFEST.model.parameters, daemon(codec="bf16")
    assert daemon(consensus=0.5) == pair + 4 * parameters, "outer_params come too"
    assert daemon(codec="modulo7") > pair + parameters // 3, "what is known of its blocks lies in memory"
    assert daemon(preset="gossip", codec="bf16") == pair - 4 * parameters, "it keeps no momentum"
    assert daemon(preset="none") < pair - 4 * parameters
    assert daemon(preset="diloco") > pair + 4 * parameters


def test_too_little_memory_is_told_with_the_numbers() -> None:
    need = memory_need(MANIFEST)
    check_memory(MANIFEST, need, need.total)
    check_memory(MANIFEST, need, None)
    with pytest.raises(MachineTooSmall) as caught:
        check_memory(MANIFEST, need, need.total - 100 * 10**6)
    assert f"{MANIFEST.model.parameters:,} parameters" in caught.value.found
    assert "(daemon " in caught.value.found
    assert "Free 100 MB" in caught.value.fix


MEMINFO = "MemTotal: 999 kB\nMemAvailable:    3000 kB\n"


def test_free_is_what_the_system_says(tmp_path: Path) -> None:
    assert free_bytes(tmp_path) is None
    assert free_bytes(written(tmp_path, proc__meminfo=MEMINFO)) == 3000 * 1024


def test_a_groups_limit_counts_and_its_droppable_cache_is_free(tmp_path: Path) -> None:
    root = written(
        tmp_path,
        proc__meminfo=MEMINFO,
        proc__self__cgroup="0::/a/b\n",
        sys__fs__cgroup__a__b__memory_dot_max="max\n",
        sys__fs__cgroup__a__b__memory_dot_current="7\n",
        sys__fs__cgroup__a__memory_dot_max="1000000\n",
        sys__fs__cgroup__a__memory_dot_current="400000\n",
        sys__fs__cgroup__a__memory_dot_stat="anon 5\ninactive_file 100000\n",
    )
    assert free_bytes(root) == 700000


def test_a_group_of_version_1_counts_too(tmp_path: Path) -> None:
    here = "sys__fs__cgroup__memory__x__memory_dot_"
    root = written(
        tmp_path,
        **{
            "proc__meminfo": MEMINFO,
            "proc__self__cgroup": "5:devices:/\n4:memory:/x\n0::/\n",
            f"{here}limit_in_bytes": "2000000",
            f"{here}usage_in_bytes": "1500000",
            f"{here}stat": "total_inactive_file 1000\n",
            "sys__fs__cgroup__memory__memory_dot_limit_in_bytes": "9223372036854771712",
            "sys__fs__cgroup__memory__memory_dot_usage_in_bytes": "1",
        },
    )
    assert free_bytes(root) == 501000
