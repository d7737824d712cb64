"""One download engine for state."""
