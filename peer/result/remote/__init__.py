"""The model of a run that others have: fetched from its donors without taking part."""
