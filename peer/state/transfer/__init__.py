"""Download of state: from several donors for a joiner, and of single fragments for a group's member."""
