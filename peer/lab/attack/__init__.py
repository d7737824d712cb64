"""Lying peers, in simulations and as real processes. The code that volunteers run does not contain or import them.

`lies` are the false values, `liar` makes a peer send them, `play` runs a simulation with and without liars, `process`
is a lying daemon, and `report` measures the effect on honest peers. `sybil_records` announces many fresh keys.
`breakdown` derives how many liars the clip of pairs withstands."""
