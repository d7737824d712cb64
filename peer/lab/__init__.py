"""Tools for researchers and developers, which a volunteer's peer does not need and does not import.

`sim` simulates a swarm in virtual time (`peer simulate`), `localswarm` runs one as real processes on this machine
(`peer swarm`), `compare` plays several methods at equal tokens (`peer compare`), and `sweep` a grid of them (`peer
sweep`). `planning` computes what a run needs (`peer plan`), `attack` holds peers that lie, and `bench` measures this
machine (`peer bench`). `from_python` offers the commands to notebooks."""
