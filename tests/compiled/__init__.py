"""Tests of kbroker with compiled modules (docs/explanation/performance.md)."""
