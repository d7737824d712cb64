"""Logs a run's metrics to experiment trackers: CSV files, TensorBoard, Trackio, Weights & Biases (`--log`).

`feed` is the daemon's part. `sinks` runs in a child process for each tracker, which imports the tracker's library. A
tracker that fails or hangs affects only its own curves, not the run."""
