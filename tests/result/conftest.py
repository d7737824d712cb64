from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.made_home import shards


@pytest.fixture(scope="session")
def shard_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return token shards of a few real texts with their own tokenizer."""
    return shards(tmp_path_factory.mktemp("shards"))
