"""Print ``docs/configuration.md``."""

from .document import document

print(document(), end="")
