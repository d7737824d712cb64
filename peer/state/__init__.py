"""State on the disk, and its transfer between peers: checkpoints, snapshots and artifacts.

`checkpointer.Checkpointer` writes local checkpoints during training, which `checkpoint.CheckpointStore` holds.
`snapshot.SnapshotCache` copies the outer state for joiners, and `transfer` downloads such copies in pieces. `artifacts`
caches and serves the files of a run.

The package does not decide which state a joiner uses (`peer.protocol.policy.donors`) or when an outer step changes the
state (`peer.rounds`). Begin reading at `checkpoint` or `snapshot`."""
