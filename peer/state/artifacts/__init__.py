"""Artifacts: files of a run, named by their digest, which peers fetch from each other and keep in a cache.

`fetcher.ArtifactFetcher` obtains a file, from the `cache` or from the peers that `holders` finds. A file that is being
fetched is a `draft`. `server.ArtifactServer` gives files to other peers, after `verified` has checked their digest."""
