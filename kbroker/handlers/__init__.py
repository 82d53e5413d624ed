"""Request to calls to response: one module per API family, named as in kbroker.protocol.messages.

`kbroker.partitions.waiters` says what a handler returns: one that answers at once is a plain function, one that
has to wait, or has much to do, is a coroutine function or returns a coroutine. What it does is done
in the order in which the requests of a connection arrive, and to its end.

Every client can name thousands of things, and there can be thousands of everything. So a handler

* works on each thing once, however often it is named, and answers what Apache Kafka does for such a
  request (an error, one row, or the last row counts);
* goes over what was sent, and over all that there is, in turns with other clients (`ctx.time_slice`);
* asks a coordinator, which cannot pause, for a bounded piece of work at a time.

`tests/broker/test_oversized_requests.py` holds every array of every API to that.
"""
