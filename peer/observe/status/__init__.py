"""The status of a daemon: the value (`value`), the notices made of it (`notices`), its JSON (`codec`) and its text
(`text`). The live view is `peer.observe.terminal_frame`, the page's part `peer.web.volunteer`."""
