"""The examples below examples/pipelines: their results equal those of plain Python."""
