"""Fetches a run's model from its donors, for a guest that does not take part. `ticket` is the entry; `fetch` downloads
and averages states, `judge` evaluates them."""
