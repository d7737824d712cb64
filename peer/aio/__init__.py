"""Asyncio helpers that know nothing of this project: events with bounded waits, tasks that end with their block, calls
that cancellation does not interrupt, staggered attempts, and a worker thread of low priority.

Begin with `peer.aio.events`."""
