"""Tests of `kbroker.coordination` with partitions in memory."""
