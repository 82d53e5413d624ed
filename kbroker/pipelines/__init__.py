"""Ready-made jobs for any Kafka cluster; they use no broker code.

Each package is one job. Its docstring says what it does; its page under docs/ says how to use it.
"""
