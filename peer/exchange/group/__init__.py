"""The topology `group`: all members of a round average their pseudo-gradients and take the same outer step.

`strategy.py` connects a group with the round loop. `member.py` runs one round; begin reading there. `rendezvous.py`
agrees on the round's roster, `shard_exchange.py` sends contributions to the shard owners, `reducer.py` and `reduce.py`
average the shard that this peer owns, `catchup.py` fetches the group's state, and `audit.py`, `evidence.py` and
`proof.py` check the results of other owners. Decisions without I/O are in `peer.protocol.group`."""
