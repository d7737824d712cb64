"""Failure detection, reachability, directory buckets."""
