"""Texts to token shards, on the operator's machine: the work of `peer data build` and `peer tokenizer train`."""
