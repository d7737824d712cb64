"""Who is slow, and why."""
