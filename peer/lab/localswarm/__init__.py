"""A swarm of real processes on this machine: `peer swarm`.

`plan` parses the options and derives the manifest. `run.Swarm` starts the bootstrap node and the peers (`processes`),
carries out kills, joins and faults (`chaos`, with `relay` between the peers), and ends everything. `report` builds the
report from what the peers left on disk, and `attendance` counts the peers that should have exchanged. The package
starts `peer` as a volunteer would; the daemon does not know that it runs in a local swarm."""
