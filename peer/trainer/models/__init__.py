"""The models that a trainer can train."""
