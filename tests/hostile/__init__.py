"""A program that does to a broker what measuring found to hold up others, and measures what they see.

`python -m tests.hostile` starts a broker for it that measures its own event loop as well, and with
`--bootstrap host:port` it is any broker that may be spoilt. A polite client in a process of its own
produces, asks for metadata and sends heartbeats meanwhile; its longest wait is what counts.
`test_hostile` is a small dose of it.
"""
