"""The trainer process: inner steps on this machine's data, and its seam to the daemon.

The daemon's side is `client.TrainerClient`, which implements `peer.ports.trainer.Trainer`, and `subprocess`, which
holds the process and its socket. Both sides share the memory-mapped files of `arena`.

In the process, `worker.TrainerWorker` is the main loop: `inner_loop` makes steps with the optimizers of `optimizer` on
batches of `batches`, and `boundary.Boundary` executes the daemon's orders between two steps. A user's own training loop
(`peer.attached`) uses the same boundary. `data`, `models` and `probing` are described in their packages. `sandbox`
opens files of strangers in a limited process.

The trainer knows no other peers and uses no network. A round is only a number in the daemon's orders. Begin reading at
`boundary`."""
