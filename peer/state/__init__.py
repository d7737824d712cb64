"""State on the disk, and its transfer between peers: checkpoints, snapshots and artifacts.

`checkpointer.Checkpointer` writes local checkpoints during training, which `checkpoint.CheckpointStore` holds.
`snapshot.SnapshotCache` copies the outer state for joiners, and `transfer` downloads such copies in pieces. `artifacts`
caches and serves the files of a run.

The package decides neither which state a joiner takes (`peer.protocol.policy.donors`) nor when one is moved
(`peer.rounds`). Begin reading at `checkpoint` or `snapshot`."""
