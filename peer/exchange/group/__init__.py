"""Exchange with everybody of a round."""
