"""A simulated swarm: the production peer in virtual time, on an in-memory network, directory and trainer.

`run.simulate` runs the simulation of `peer simulate` and returns its report. `swarm.SimulatedSwarm` is the swarm
itself, which tests drive with faults (`faults.Fault`). `process` composes one simulated peer from the parts of the
daemon. `virtual_clock` runs an asyncio loop whose time jumps to the next timer. The adapters of the four ports are
`directory`, `memory_transport` (over `network`), `trainer` and `virtual_clock`.

The package starts no process, opens no socket and does not know how real machines are measured."""
