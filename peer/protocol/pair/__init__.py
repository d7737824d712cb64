"""Finding a partner."""
