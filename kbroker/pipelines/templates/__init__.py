"""Project directories for pipelines: what `kbroker init pipeline` copies.

Below `files` lies a directory for each kind of pipeline, beside `common` with what all of them get and
`topics` with what those get that write to topics. Together they make a project called `my_pipeline`; a
copy has its own name in file names and texts instead.
"""

from .project import KINDS, TemplateError, copy_project

__all__ = ["KINDS", "TemplateError", "copy_project"]
