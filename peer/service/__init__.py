"""Installs a peer as a service of the user's systemd, and removes everything that `peer` has written.

`plan` describes what a service runs, `install` writes and removes its files, `systemd` talks to the service manager,
and `uninstall` finds and deletes the files of a home. Begin reading at `plan`."""
