"""Tests of the tools for AI agents."""
