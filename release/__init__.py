"""Builds of the files that a release publishes."""
