"""Files that a run needs besides its manifest, and files of its volunteers."""
