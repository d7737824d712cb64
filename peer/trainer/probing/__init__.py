"""Probes: the losses of a partner's params on the run's data, computed in the trainer before they are applied.

`probe.Prober` computes them, `windows` chooses the windows of text, and `run_sample` collects such windows from random
shards. The decision that follows from the losses is made in `peer.protocol.pair.probe_verdict`."""
