"""Write records again that were written once: from a topic, lines of JSON or the lake, to a topic.

`sources` says what a source is, one module each is a source. `replay` reads it, waits until records
are due (`pace`), chooses partitions (`partitioners`) and writes. `journal` lets a later run go on. No group
is ever asked or changed. docs/how-to/replay.md has the use of it.
"""
