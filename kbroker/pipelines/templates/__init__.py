"""Project templates for pipelines, which `kbroker init pipeline` copies.

`files` has one directory per kind of pipeline, `common` for all kinds, and `topics` for kinds that
write to topics. Together they form a project named `my_pipeline`. A copy has its own name in file
names and contents.
"""

from .project import KINDS, TemplateError, copy_project

__all__ = ["KINDS", "TemplateError", "copy_project"]
