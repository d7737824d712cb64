"""Papers: short documents of a run that every peer keeps and hands on."""
