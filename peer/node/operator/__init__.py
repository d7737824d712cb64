"""The operator's node: entry, donor, and keeper of the newest state."""
