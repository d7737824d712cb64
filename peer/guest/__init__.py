"""Limits on the trainer, for a machine that its owner also uses: when training may run, and how much of the machine it
takes.

`options` holds the volunteer's choices. `watch` decides when training may run: it reads the `conditions` from `sources`
(system services over `system_bus`, and `temperature`), each smoothed by `settling`. `duty` and `priority` limit the
trainer's share of processor, GPU and disk. Begin reading at `watch.MachineWatch`. The package knows nothing of rounds;
`peer.rounds.pause` stops the training."""
