"""Frames and payloads in memory."""
