"""The pages of the documentation, for a terminal."""
