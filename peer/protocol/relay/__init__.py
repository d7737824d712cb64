"""Rules for relays, all pure: `circuits` (reservations and circuits of a relay), `standing` and `testimony` (which
relays a peer avoids), `punching` (when to try a direct connection instead). Begin with `circuits`."""
