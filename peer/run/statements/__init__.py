"""The operator's signed statements about a run, which every peer checks, stores and hands on.

A statement is a short JSON document, a signature over its exact bytes, and, if a node signed for the operator, the
operator's delegation to that node. There are four kinds, each a class in `kinds`. An *amendment* changes the live run,
and bans and revocations of invitations are amendments too. Amendments form a chain: each has a number and names its
predecessor, and none is ever removed. A *start* sets when round 0 begins, a *digest* identifies the state of a round,
and a *delegation* lists what a node may sign. These three are called papers. They form a set: for each place only the
paper of the best rank is held.

`statement` signs and opens a statement, `log` holds those of one peer and answers from them, `files` stores them.
`peer.membership.statement_sync` exchanges them with other peers. Nothing here uses the network."""
