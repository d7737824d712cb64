"""The files of a run: which of them a joiner fetches, and which must lie beside the operator's manifest."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from blake3 import blake3

from peer.aio.threads import inline
from peer.errors import DataError, ManifestError
from peer.joining.artifacts import RunFileStore, files_to_train, operator_files
from peer.observe.progress import WaitProgress, ignore_progress
from peer.run.files.artifact import ArtifactRef
from peer.run.files.token_index import ShardEntry, ShardTable, TokenIndex, format_index, shard_file
from peer.run.manifest import Manifest, parse_manifest
from peer.state.artifacts.cache import ArtifactCache

SHARD = bytes(range(200))
INDEX = TokenIndex(
    "uint16",
    300,
    0,
    "0" * 64,
    ShardTable([ShardEntry(blake3(SHARD).hexdigest(), 100, 2, 300)]),
    ShardTable([ShardEntry("1" * 64, 50, 1, 150)]),
)
RAW = format_index(INDEX)
TOKENIZER = b"{}"


def name_of(raw: bytes) -> str:
    return f'{{ digest = "{blake3(raw).hexdigest()}", size = {len(raw)} }}'


def manifest() -> Manifest:
    return parse_manifest(
        f"""format = 2
[model]
vocab_size = 300
[tokenizer]
kind = "file"
vocab_size = 300
end_token = 0
file = {name_of(TOKENIZER)}
[data]
kind = "tokens"
index = {name_of(RAW)}
""".encode()
    )


def operators_folder(folder: Path) -> Path:
    """Return the path of a manifest with its files beside it."""
    beside = folder / "run.artifacts"
    beside.mkdir()
    for raw in (RAW, TOKENIZER):
        (beside / blake3(raw).hexdigest()).write_bytes(raw)
    return folder / "run.toml"


class Swarm:
    """Returns the index, and records the requests."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.asked: list[str] = []

    async def fetch(self, ref: ArtifactRef, timeout_s: float, progress: WaitProgress, what: str) -> Path:
        self.asked.append(what)
        path = self._folder / ref.digest
        path.write_bytes(RAW)
        return path


def test_a_joiner_fetches_the_index_and_no_tokenizer(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    store = RunFileStore(ArtifactCache(tmp_path / "cache", 10**6), swarm, inline)
    files = asyncio.run(store.obtain(manifest(), 1.0, ignore_progress))
    store.close()
    assert swarm.asked == ["the run's index"]
    assert files.index == INDEX
    assert files.tensors is None
    assert list(files_to_train(manifest())) == ["index"]


def test_a_volunteer_s_home_gets_the_tokenizer_too_so_that_the_model_can_be_used(tmp_path: Path) -> None:
    swarm = Swarm(tmp_path)
    store = RunFileStore(ArtifactCache(tmp_path / "cache", 10**6), swarm, inline)
    asyncio.run(store.obtain_rest(manifest(), 1.0))
    store.close()
    assert swarm.asked == ["the run's tokenizer"]


def test_an_operator_serves_the_files_and_the_shards_that_are_here(tmp_path: Path) -> None:
    path, data = operators_folder(tmp_path), tmp_path / "data"
    data.mkdir()
    (data / shard_file("train", 0)).write_bytes(SHARD)
    said: list[str] = []
    files, sources = operator_files(path, manifest(), data, said.append)
    assert files.index == INDEX
    assert set(sources) == {blake3(raw).hexdigest() for raw in (RAW, TOKENIZER, SHARD)}
    assert said == ["token shards: 1 of 2 are served here"]


def test_a_data_folder_without_a_shard_of_the_run_is_refused(tmp_path: Path) -> None:
    path = operators_folder(tmp_path)
    with pytest.raises(DataError, match="holds no shard of this run"):
        operator_files(path, manifest(), tmp_path, [].append)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="does not hold the run's tokenizer, index"):
        operator_files(tmp_path / "run.toml", manifest(), None, [].append)


@pytest.mark.parametrize("damaged", [RAW[:-1], b"x" + RAW[1:]])
def test_a_damaged_file_is_named(tmp_path: Path, damaged: bytes) -> None:
    path = operators_folder(tmp_path)
    (tmp_path / "run.artifacts" / blake3(RAW).hexdigest()).write_bytes(damaged)
    with pytest.raises(ManifestError, match=r"the run's index .* is damaged"):
        operator_files(path, manifest(), None, [].append)
