"""Shared code of the compatibility tests: brokers, client processes, proxies and comparisons."""
