"""Benchmark of cluster size: nodes as processes over etcd, and the metadata alone."""
