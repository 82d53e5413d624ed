"""Ready-made jobs next to a Kafka: any Kafka, they know no broker.

One package for each: what it does stands in its docstring, how it is used in the page of its name
under docs/.
"""
