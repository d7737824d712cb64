"""The command line: one module for each command, without logic of its own.

A command parses its options, imports what it needs, calls it, prints the result and maps errors to exit codes. `main`
has the list of commands and the handling of errors; `options` has the options that several commands share. Imports of
torch or the network are inside functions, so that `--help` is quick. Begin with `main` and `join`."""
