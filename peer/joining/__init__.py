"""The join of a run: from a ticket to a trainer that is ready.

Begin with `sequence.py`, which has the order of the stages: manifest, terms, contract, files, state, trainer. The
functions of a stage are in the module of that name (`manifest.py`, `contract.py`, `artifacts.py`, `state.py`,
`trainer.py`; the terms are in `ended.py`, `statements.py` and `invitation.py`). The daemon, `peer doctor`, the
operator's node and the simulator all join by this sequence.

Decisions about donors are in `peer.protocol.policy.donors`, and the transfer of pieces is in `peer.state.transfer`."""
