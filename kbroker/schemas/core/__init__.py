"""Registry core without I/O: schema formats, the store, and plans for writes.

It uses no event loop and no clock. The state changes only by replaying records.
"""
