"""A load program that attacks a broker with expensive requests and measures the effect on others.

`python -m tests.hostile` starts a broker that also measures its own event loop. With `--bootstrap
host:port` it attacks any disposable broker. A polite client in its own process produces, requests
metadata and sends heartbeats at the same time. Its longest wait is the result. `test_hostile` runs
a short version.
"""
