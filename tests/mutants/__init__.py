"""Planted bugs that the tests of replication must detect: `python -m tests.mutants`."""
