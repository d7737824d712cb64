"""A daemon's way out: what it takes on this machine, and what is told of it."""
