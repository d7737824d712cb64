"""Groups: agree on the members of a round and on the base of their average, and divide a fragment among them.

A leader collects joins and signs a `roster`. `quorum` decides whether its members may move the group's state. `shards`
assigns parts of the fragment to owners, who average the contributions and sign the results (`receipts`).
`contributor_judge` and `plausibility` detect false contributions and false results. Begin with `roster`."""
