"""The status report as text for a person."""
