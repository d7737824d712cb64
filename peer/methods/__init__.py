"""The synchronization methods that a run may use.

Each method has one file with all that belongs to it: its outer rule, its presets, checks, cautions and texts for the
docs. `registry` lists the files. Methods in `experimental` are imported by `registry` alone.

`method.Method` is a resolved method, that is the value of every choice in a manifest's `[sync]`. `rule.OuterRule` is
the interface of the outer rules. `checks` refuses methods that cannot work, and `cautions` warns of those that gain
nothing. The package does not exchange anything; that is `peer.exchange`. Begin reading at `method` and `noloco`."""
