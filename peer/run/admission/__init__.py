"""Admission to a run: invitations, and the rule by which peers check them. Begin with `invitation.py`."""
