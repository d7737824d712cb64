"""Who may take part in a run."""
