"""The rules of the operator and of the volunteer."""
