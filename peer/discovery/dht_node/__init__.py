"""The DHT node: hivemind's node on top of p2pd (the libp2p daemon, a child process), kept alive by a supervisor.

`supervisor.py` starts, watches and rebuilds the node, and keeps it joined; begin reading there. `node.py` wraps one
running node and `process.py` its p2pd process. Only these two and `entry_store.py` use hivemind's code.
`question_gate.py`, `answers.py` and `entry_store.py` bound what other nodes can cause here; `redial.py`, `reaching.py`
and `holders.py` reduce connections and searches."""
