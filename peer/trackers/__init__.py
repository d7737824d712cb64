"""A run's metrics in the experiment trackers that people use: files of CSV, TensorBoard, Trackio, Weights & Biases.

`feed` belongs to the daemon, `sinks` to the child process that loads a tracker's library. A tracker that fails or hangs
costs the run nothing but its own curves."""
