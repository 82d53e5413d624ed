"""Request to calls to response: one module per API family, named as in kbroker.protocol.messages.

A handler is a plain function. What it does before it returns is done in the order in which the
requests of a connection arrive; what it returns is the response, None (no answer is owed), or an
answer to come: a `Pending` or a coroutine, which the connection resolves in order.
"""
