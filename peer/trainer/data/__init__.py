"""The training data of a trainer process, as tokens.

`corpus.TrainingData` is the interface. Its kinds are the source of Python's standard library (`stdlib`), the
volunteer's own texts (`text`, `tokenized`) and shards of the run, which the daemon fetches (`tokens`). `load` opens the
first two. `tracked` and `account` record which data was drawn for which work, and `recompute` draws it again."""

from peer.trainer.data.corpus import Corpus, Tokens, TrainingData
from peer.trainer.data.load import load_corpus
from peer.trainer.data.text import BLOCK_BYTES

__all__ = ["BLOCK_BYTES", "Corpus", "Tokens", "TrainingData", "load_corpus"]
