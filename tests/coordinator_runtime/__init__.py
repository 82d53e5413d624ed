"""Tests of `kbroker.coordinator_runtime` with partitions in memory."""
