"""Nothing that a volunteer needs: simulator, local swarms, benchmarks, planning."""
