"""Measurements of this machine: `peer bench`. Rates are medians of several repetitions; a measurement and its yardstick
(such as a memory copy or gloo) alternate in one run.

`codecs`, `trainer` and `exchange` measure one part each. `pair` and `daemon_process` run two daemons' parts as
processes, for the scripts in `benchmarks/`. `machine` describes the machine."""
