"""The process of a daemon. This package puts a peer together, opens its network side, and serves its user.

Begin with `peer.py`, a volunteer's daemon from start to end, and `compose.py`, the one place where a peer's parts are
connected. `open.py` opens transport and directory, for volunteers and operators alike. `handler.py` routes calls of
other peers to the parts that serve them. `control.py`, `status.py`, `display.py`, `metrics.py` and `page.py` face the
user. `operator/` is the bootstrap node, `doctor/` the checks of `peer doctor`, `leaving/` the shutdown.

Rounds, exchanges and transfers are not implemented here: see `peer.rounds`, `peer.exchange` and `peer.state`."""
