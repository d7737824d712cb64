"""What the operator and the volunteer allow."""
