"""Transfer of state in pieces.

`download` fetches the pieces of a state or an artifact from several donors at once, as `scheduler` assigns them.
`pieces` stores those of a joiner. `fragment` serves and fetches a single fragment, for a group's member that fell
behind."""
