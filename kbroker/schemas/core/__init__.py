"""The registry without a network: formats of schemas, what is stored, and what may be stored next.

It knows no event loop and reads no clock; what is stored changes by replay of records only.
"""
