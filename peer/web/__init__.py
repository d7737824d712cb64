"""The HTTP pages of a daemon: the volunteer's page with live state and buttons, the public page of a run on the
operator's node, and the metrics for Prometheus.

`page` and `metrics` open a page for the lifetime of a daemon: begin there. `app` defines the routes, `guard` checks
every request, and `server` bounds what a connection may use. `volunteer` and `public` build the JSON account that a
page shows, `broadcast` streams it to browsers. The package reads typed status and acts only through
`peer.node.control`."""
