"""Options that do not come from the command line: environment variables (`PEER_...`) and the configuration file.

`loading` is called by the command line before it parses a command's options. `file` reads `config.toml` and `edit`
changes it, `options` matches its keys and the variables with the options that click knows, and `report` shows where
each value comes from. Nothing here knows what an option means."""
