"""Kinds of training data, as tokens: the interpreter's source, the volunteer's texts, shards of the run."""

from peer.trainer.data.corpus import Corpus, Tokens, TrainingData
from peer.trainer.data.load import load_corpus
from peer.trainer.data.text import BLOCK_BYTES

__all__ = ["BLOCK_BYTES", "Corpus", "Tokens", "TrainingData", "load_corpus"]
