"""Turns texts into token shards on the operator's machine: `peer data build` and `peer tokenizer train`.

The order of the work: `sources` finds the files, `documents` reads their documents (`lines` for JSONL), `pieces` cuts
long ones, `pipeline` and `encoding` tokenize them, and `shard_writer` writes the shards. `build` connects these and can
resume a killed build from `build_progress`. `train_tokenizer` trains a tokenizer on the same documents.

The package knows no run and no network. What trainers do with the shards is in `peer.trainer.data`."""
