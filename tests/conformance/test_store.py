"""Conformance suite for every checkpoint store."""

import errno
import json
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from peer.state.checkpoint import Checkpoint, CheckpointError, CheckpointStore
from peer.state.tensor_file import write_tensors

RUN, LAYOUT = b"r" * 32, b"l" * 32
FACTS = {"round": 3, "tokens": 10**21, "peer_id": "p", "seconds": 0.1, "nested": {"a": [1, None]}}

STORES: dict[str, Callable[[Path], CheckpointStore]] = {
    "local": lambda folder: CheckpointStore(folder / "checkpoints", keep=2)
}


@pytest.fixture(params=STORES)
def store(request, tmp_path) -> CheckpointStore:
    return STORES[request.param](tmp_path)


def tensors(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tensors with all special values of fp32, whose bits must be preserved."""
    noise = torch.Generator().manual_seed(seed)
    params, momentum = torch.randn(5000, generator=noise), torch.randn(5000, generator=noise)
    params[:5] = torch.tensor([0.0, -0.0, 1e-45, 3.4e38, float("inf")])
    return params, momentum


def write(store: CheckpointStore, seed: int = 0, run: bytes = RUN, layout: bytes = LAYOUT) -> Checkpoint:
    draft = store.begin()
    save_file({"w": torch.arange(10.0) + seed}, draft / "trainer.safetensors")
    (draft / "trainer.json").write_text(json.dumps({"seed": seed}))
    return store.commit(draft, *tensors(seed), run, layout, FACTS | {"seed": seed})


def seeds(store: CheckpointStore) -> int | None:
    found, _ = store.latest(RUN, LAYOUT)
    return None if found is None else found.facts["seed"]


def names(store: CheckpointStore) -> list[str]:
    return sorted(path.name for path in store.folder.iterdir())


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.int32)


def test_round_trip_bit_for_bit(store):
    written = write(store, seed=7)
    found, skipped = store.latest(RUN, LAYOUT)
    assert skipped == []
    assert found == written
    assert found.facts == FACTS | {"seed": 7}
    for got, wanted in zip(found.load(), tensors(7), strict=True):
        assert got.dtype == torch.float32
        assert torch.equal(bits(got), bits(wanted))
    assert torch.equal(load_file(found.folder / "trainer.safetensors")["w"], torch.arange(10.0) + 7)
    files = [p for p in found.folder.iterdir() if p.name != "state.json"]
    assert len(files) == 3
    assert found.nbytes == sum(p.stat().st_size for p in files)


def test_loaded_tensors_are_ours_alone(store):
    found = write(store)
    params, _ = found.load()
    # Not mapped from the file: were it cut short later, touching the tensor would kill the process.
    assert str(found.folder) not in Path("/proc/self/maps").read_text()
    params += 1
    assert torch.equal(bits(found.load()[0]), bits(tensors()[0]))
    shutil.rmtree(found.folder)
    assert torch.isfinite(params[5:]).all()


def test_nothing_there_yet(store):
    assert store.latest(RUN, LAYOUT) == (None, [])


def test_the_newest_wins_and_two_are_kept(store):
    for seed in range(4):
        write(store, seed)
    assert seeds(store) == 3
    assert names(store) == ["checkpoint-3", "checkpoint-4"]


def test_files_are_for_the_owner_alone(store):
    found = write(store)
    assert found.folder.stat().st_mode & 0o077 == 0


FILES = ["outer.safetensors", "trainer.safetensors", "trainer.json", "state.json"]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("part", [0.0, 0.01, 0.5, 0.99, 1.0])
def test_a_torn_file_is_skipped_and_the_former_used(store, name, part):
    write(store, 0)
    path = write(store, 1).folder / name
    size = path.stat().st_size
    os.truncate(path, min(int(size * part), size - 2))
    found, skipped = store.latest(RUN, LAYOUT)
    assert found is not None
    assert found.facts["seed"] == 0
    assert len(skipped) == 1
    assert "checkpoint-2" in skipped[0]
    assert "torn" in skipped[0]


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("at", [0, 1, 9, 0.3, 0.5, 0.7, -3])
def test_a_flipped_bit_is_skipped_and_the_former_used(store, name, at):
    write(store, 0)
    path = write(store, 1).folder / name
    data = bytearray(path.read_bytes())
    where = int(at * len(data)) if isinstance(at, float) else at
    data[where] ^= 1
    path.write_bytes(data)
    found, skipped = store.latest(RUN, LAYOUT)
    # White space of state.json may change; a value may not.
    harmless = name == "state.json" and json_equal(bytes(data), store, 2)
    assert (found is not None and found.facts["seed"] == 0 and "damaged" in skipped[0]) or harmless


def json_equal(data: bytes, store: CheckpointStore, number: int) -> bool:
    try:
        body = json.loads(data)
    except ValueError:
        return False
    shutil.rmtree(store.folder / f"checkpoint-{number}")
    again = write(store, 1)
    return body == json.loads((again.folder / "state.json").read_text())


@pytest.mark.parametrize("value", [b"10000000000000000000000", b"7"])
def test_a_changed_number_in_the_facts_is_damage(store, value):
    path = write(store).folder / "state.json"
    path.write_bytes(path.read_bytes().replace(b"1000000000000000000000", value))
    found, skipped = store.latest(RUN, LAYOUT)
    assert found is None
    assert skipped == ["checkpoint-1: state.json is damaged: its digest does not match"]


@pytest.mark.parametrize("name", FILES)
def test_a_missing_file(store, name):
    write(store, 0)
    (write(store, 1).folder / name).unlink()
    found, skipped = store.latest(RUN, LAYOUT)
    assert found is not None
    assert found.facts["seed"] == 0
    assert skipped == [f"checkpoint-2: {name} is missing"]


@pytest.mark.parametrize("body", [b"[]", b"null", b"{}", b'{"state":[],"blake3":""}', b"[" * 10**5, b"x" * 2**21])
def test_a_foreign_state_file(store, body):
    (write(store).folder / "state.json").write_bytes(body)
    found, skipped = store.latest(RUN, LAYOUT)
    assert found is None
    assert len(skipped) == 1


def test_another_run_and_another_layout(store):
    write(store, 0)
    write(store, 1, run=b"x" * 32)
    found, skipped = store.latest(RUN, LAYOUT)
    assert found is not None
    assert found.facts["seed"] == 0
    assert "another run" in skipped[0]
    write(store, 2, layout=b"x" * 32)
    found, skipped = store.latest(RUN, LAYOUT)
    assert found is None  # the store keeps two checkpoints, and neither is usable
    assert "another layout" in skipped[0]
    assert "another run" in skipped[1]


def test_a_newer_format(store):
    path = write(store).folder / "state.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    found, skipped = store.latest(RUN, LAYOUT)
    assert found is None
    assert "newer version" in skipped[0]


def test_a_kill_before_the_rename_leaves_the_former_and_is_cleaned_up(store):
    write(store, 0)
    draft = store.begin()
    (draft / "half").write_bytes(b"x" * 100)
    shutil.copytree(store.folder / "checkpoint-1", draft / "deep")
    assert seeds(store) == 0
    assert names(store) == [draft.name, "checkpoint-1"]
    again = store.begin()
    assert names(store) == [again.name, "checkpoint-1"]
    shutil.rmtree(again)
    write(store, 1)
    assert seeds(store) == 1


def out_of_space(*args, **kwargs):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.mark.parametrize("call", ["fsync", "write", "rename"])
def test_a_full_disk_keeps_the_former(store, monkeypatch, call):
    write(store, 0)
    draft = store.begin()
    with monkeypatch.context() as patch:
        patch.setattr(os, call, out_of_space)
        with pytest.raises(CheckpointError, match="No space left"):
            store.commit(draft, *tensors(1), RUN, LAYOUT, FACTS)
    assert names(store) == ["checkpoint-1"]
    assert seeds(store) == 0
    write(store, 2)
    assert seeds(store) == 2


@pytest.mark.parametrize("nth", range(5))
def test_a_full_disk_at_any_sync(store, monkeypatch, nth):
    write(store, 0)
    draft = store.begin()
    (draft / "trainer.json").write_text("{}")
    real, calls = os.fsync, iter(range(100))

    def sometimes(fd):
        if next(calls) == nth:
            out_of_space()
        real(fd)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", sometimes)
        with pytest.raises(CheckpointError, match="No space left"):
            store.commit(draft, *tensors(1), RUN, LAYOUT, FACTS | {"seed": 1})
    assert not draft.exists()
    assert seeds(store) in (0, 1)  # 1: complete under its name, only the folder's sync failed
    assert (seeds(store) == 1) == (nth == 4)


def test_the_kernel_refuses_the_bytes(store):
    write(store, 0)
    draft = store.begin()
    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, old[1]))
        with pytest.raises(CheckpointError):
            store.commit(draft, *tensors(1), RUN, LAYOUT, FACTS)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
    assert names(store) == ["checkpoint-1"]
    assert seeds(store) == 0


def test_no_folder_can_be_made(store, monkeypatch):
    monkeypatch.setattr(os, "mkdir", out_of_space)
    with pytest.raises(CheckpointError, match="No space left"):
        store.begin()


def test_a_link_is_not_followed_for_reading_or_removing(store, tmp_path):
    good = write(store, 0).folder
    outside = tmp_path / "precious"
    shutil.copytree(good, outside)
    (store.folder / "checkpoint-9").symlink_to(outside, target_is_directory=True)
    (store.folder / ".draft-0123456789abcdef").symlink_to(outside, target_is_directory=True)
    found, skipped = store.latest(RUN, LAYOUT)
    assert found is not None
    assert found.folder == good
    assert "link" in skipped[0]
    for seed in range(1, 5):
        write(store, seed)
    assert seeds(store) == 4
    assert len(list(outside.iterdir())) == 4
    assert (store.folder / "checkpoint-9").is_symlink()


def test_a_link_inside_a_checkpoint_is_not_followed(store, tmp_path):
    write(store, 0)
    folder = write(store, 1).folder
    (folder / "outer.safetensors").rename(tmp_path / "moved")
    (folder / "outer.safetensors").symlink_to(tmp_path / "moved")
    assert seeds(store) == 0


@pytest.mark.parametrize("make", [lambda p: p.mkdir(), lambda p: p.symlink_to("/etc/passwd"), os.mkfifo])
def test_only_plain_files_are_taken_from_the_trainer(store, make):
    draft = store.begin()
    make(draft / "odd")
    with pytest.raises(CheckpointError):
        store.commit(draft, *tensors(), RUN, LAYOUT, FACTS)
    assert names(store) == []


def test_other_things_in_the_folder_stay(store):
    store.folder.mkdir(parents=True)
    others = ["checkpoint-01", "checkpoint-1.bak", "checkpoint--1", "notes", ".draft-xyz", "xcheckpoint-1"]
    for name in others:
        (store.folder / name).mkdir()
    for seed in range(4):
        write(store, seed)
    assert names(store) == sorted([*others, "checkpoint-3", "checkpoint-4"])


def test_foreign_tensors_under_a_right_digest(store, monkeypatch):
    def other(path, body):
        return write_tensors(path, {"outer_params": body["outer_params"]})

    monkeypatch.setattr("peer.state.checkpoint.write_tensors", other)
    write(store)
    found, skipped = store.latest(RUN, LAYOUT)
    assert found is None
    assert "lacks outer_momentum" in skipped[0]
