"""The status of a daemon. `value` defines it, `codec` converts it to JSON and back, `notices` derives warnings from it,
and `text` renders it for `peer status`. The live view is `peer.observe.terminal_frame`, the page is
`peer.web.volunteer`."""
