"""Exchange with one random partner."""
