"""The lab, which a volunteer does not need: simulator, local swarms, benchmarks, planning."""
