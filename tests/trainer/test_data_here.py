"""The data that a trainer uses for measurements of its pace, which need no download."""

from __future__ import annotations

from peer.run.manifest import default_text
from peer.run.schema import parse_manifest
from peer.run.sections import ArtifactRef, DataSection, TokenizerSection
from peer.trainer.config import TrainerConfig

CONFIG = TrainerConfig.of(parse_manifest(default_text().encode()), "guest")
FILE = ArtifactRef(digest="a" * 64, size=1)


def test_data_that_is_not_here_is_replaced() -> None:
    assert CONFIG.with_data_here() is CONFIG
    text = CONFIG.model_copy(update={"data": DataSection(kind="text")})
    assert text.with_data_here().data.kind == "stdlib"
    own = text.model_copy(update={"data_dir": "/texts"})
    assert own.with_data_here() is own


def test_shards_are_replaced_with_their_tokenizer() -> None:
    shards = CONFIG.model_copy(
        update={
            "data": DataSection(kind="tokens", index=FILE),
            "tokenizer": TokenizerSection(kind="file", vocab_size=500, end_token=499, file=FILE),
        }
    )

    here = shards.with_data_here()

    assert (here.data.kind, here.tokenizer) == ("stdlib", TokenizerSection())
