"""`peer.join` and `peer.found`: training with a loop of the user's own, inside the user's program.

`swarm` has the public interface. `loop.AttachedTrainer` connects the loop to its daemon, a child process (`daemon`,
`daemon_link`). Between two steps it executes the daemon's orders with the same `peer.trainer.boundary.Boundary` as the
built-in loop. The user's tensors are bound to the run's layout in `bound_run` and `params`, and judged by losses in
`judging`. With several ranks of torchrun, rank 0 has the daemon and orders the others (`ranks`, `follower`).

The package never opens a network connection, and never ends or blocks the user's loop because of the network. Begin
reading at `swarm`, then `loop`."""
