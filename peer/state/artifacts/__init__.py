"""Artifacts: files of a run, named by their digest, that peers fetch from each other and keep in a cache."""
