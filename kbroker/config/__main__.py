"""Print ``docs/reference/configuration.md``."""

from .document import document

print(document(), end="")
