"""The rules of the protocol as pure code: no I/O, no clock, no threads. `now` and random generators are arguments.

Begin with `messages` (what peers send each other) and `schedule` (when rounds are due). Subpackages: `pair` and `group`
(matching and exchange), `swarm` (membership and reachability), `relay`, `policy` (limits and choices), `model` (layout
and fragments), `wire` (framing), `diagnosis`, and `summary`. `peer.transport` performs the I/O."""
