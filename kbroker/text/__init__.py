"""Text that people and other programs write and read."""
