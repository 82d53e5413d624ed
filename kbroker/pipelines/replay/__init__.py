"""Replay: writes records from a topic, NDJSON or a lake to a topic again.

`sources` defines a source, with one module per source. `replay` reads it, waits until records are
due (`pace`), chooses partitions (`partitioners`), and writes. `journal` lets a later run resume. No
consumer group is used. See docs/how-to/replay.md.
"""
