"""Diagnosis of slow peers, links and trainers."""
