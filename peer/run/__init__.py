"""A run as data: the manifest and everything that follows from it without a network.

Begin with `manifest.py` (signed bytes) and `schema.py` (the checked manifest, whose sections are in `sections.py`).
`resolve.py` turns its [sync] section into a `Method`. `ticket.py` and `admission/` encode tickets and invitations, and
`statements/` the operator's signed statements about a live run. `files/` reads the artifacts that a manifest names.
`costs.py`, `memory.py`, `load.py` and `worth.py` compute from a manifest what a run costs and gains. `home.py` has the
paths under a home, `options.py` the user's choices.

Nothing here opens a connection or imports torch."""
