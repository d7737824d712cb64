"""A daemon's page for browsers: what it does, live, and for its volunteer the buttons to pause and to leave."""
