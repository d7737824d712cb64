"""What the operator of a run signed: statements, which every peer checks, keeps and hands on.

A statement is a short JSON document, the signature over its exact bytes, and, where a node signed for the operator, the
operator's delegation to that node. There are four kinds, a class each in `kinds`:

* an *amendment* changes the run under way. Bans and revocations of invitations are amendments, too. Amendments form a
  chain: each has a number and names its predecessor, and none is ever removed.
* a *start* says when round 0 begins, a *digest* what the state of a round was, a *delegation* what a node may sign.
  These three are called papers. They form a set: of several in one place the one of the best rank is held.

`statement` signs and opens one, `log` has the statements that one peer holds and answers from them, `files` keeps them.
`peer.membership.statement_sync` asks other peers for them and hands them on; nothing here knows the network."""
