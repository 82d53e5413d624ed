"""The ground: time, turns of the event loop, threads, log output."""
