"""Server process: startup, supervision and shutdown of `kbroker serve` and `kbroker run`."""
