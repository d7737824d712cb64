"""The topology `pair`: in each round a peer exchanges params with one random partner.

`strategy.py` runs a round; begin reading there. `search.py` looks for the partner and `matchmaker.py` answers the
offers of others. `swap.py` transfers the payloads. `acceptance.py` decides whether and how far the partner's params
enter the outer step, with `check.py` and `clipping.py`. `partners.py` records the outcome for reputation and diagnosis.
Decisions without I/O are in `peer.protocol.pair`."""
