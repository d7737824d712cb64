"""Agreeing on a roster, and cutting a fragment into shards."""
