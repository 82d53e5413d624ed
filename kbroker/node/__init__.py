"""Node: one broker of the cluster with its state and background work."""
