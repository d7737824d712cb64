"""The methods that a run may have. A file has what belongs together: an outer rule, presets, checks, cautions, rows of
the docs. `registry` names the files. `experimental` has those that the core has to do without."""
