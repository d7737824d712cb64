"""The model that a run made: read a state from a home, a checkpoint or a ticket, evaluate it, continue a text with it,
export it.

`source` loads a model (`local` from disk, `remote` from the run's peers), `model` defines it, and `evaluate`,
`generate` and `export` use it. A daemon does not need this package, and nothing here takes part in a run."""
