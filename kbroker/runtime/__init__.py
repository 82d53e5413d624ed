"""Runtime support: clocks, time slices of the event loop, threads, log output."""
