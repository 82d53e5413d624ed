"""The examples below examples/pipelines: their results are those of plain Python."""
