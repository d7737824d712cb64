"""Writes a run's model to a folder in a format of other programs. `write.export` is the entry; `hf` and `plain` are the
formats."""
