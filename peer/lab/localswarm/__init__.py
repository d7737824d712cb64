"""A swarm of real processes on this machine: `peer swarm`.

`plan` parses what was asked for and derives the manifest. `run.Swarm` starts the bootstrap node and the peers
(`processes`), carries out kills, joins and faults (`chaos`, with `relay` between the peers), and ends everything.
`report` builds the report from what the peers left on disk, and `attendance` counts who should have exchanged. The
package starts `peer` as a volunteer would; the daemon does not know that it runs in a local swarm."""
