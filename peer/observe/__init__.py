"""What a peer records about itself and shows to people and programs.

Facts flow in one direction: the parts of the daemon append typed events (`events`) to the `journal`; `totals` sums them
up; `status.value` is a snapshot of the running daemon; the terminal, `peer status`, the web page and the Prometheus
metrics are rendered from these. Nothing here decides anything for the run. Begin with `events` and `status.value`."""
