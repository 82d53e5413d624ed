"""Parsing and formatting of text: paths, documents, lines, times, NAME=VALUE pairs."""
