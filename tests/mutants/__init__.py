"""Defects that the tests of replication must find: `python -m tests.mutants`."""
