"""Transfer of state in pieces.

`download` fetches pieces from several donors at once, as `scheduler` assigns them; it serves states and artifacts.
`pieces` stores those of a joiner. `fragment` serves and fetches a single fragment, for a group's member that fell
behind."""
