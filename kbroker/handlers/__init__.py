"""Request handlers: one module per API family, named as in `kbroker.protocol.messages`.

`kbroker.partitions.waiters` describes what a handler returns. A handler that responds at once is a
plain function. A handler that waits or does much work is a coroutine function, or returns a
coroutine. The ordered work of a connection's requests runs in their order of arrival, and is never
cancelled half-way.

A request can name thousands of resources, and a cluster can have thousands of each type. So a
handler

* processes each resource once, and answers duplicates as Apache Kafka does (an error, one row, or
  the last row counts);
* iterates over request rows and over cluster state in time slices (`ctx.time_slice`);
* calls a coordinator, which cannot pause, for a bounded piece of work at a time.

`tests/broker/test_oversized_requests.py` checks these rules for every array of every API.
"""
