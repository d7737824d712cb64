"""`peer compare`: several methods at equal tokens, as real swarms or in virtual time, with a table and a plot.

`entries` reads the manifests and cuts them to one length, `play` runs a swarm, `curve` reads its journals, and
`result.compare` plays everything and holds the outcome. `worth` measures the effective speed-up against a single peer.
`plot` and `rows` write files."""
