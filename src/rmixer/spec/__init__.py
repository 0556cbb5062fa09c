"""Jobs files: YAML in, checked `rmixer.model.JobSpec` out.

    document      YAML as plain values, with the line of every key
    drafts        defaults merged in, sweeps expanded, one draft per job
    schema        the keys, their types and ranges (pydantic); the JSON schema
    build         what depends on files and on several keys; the payload
    load          the ways in: a file, a command line, values from Python

Nothing here starts a process or imports torch; what only training knows is asked of
`rmixer.catalog`.
"""

from rmixer.spec.changes import describe_changes
from rmixer.spec.load import (
    JobsFile,
    command_name,
    job_from_command,
    jobs_from_dicts,
    load_jobs_file,
)
from rmixer.spec.problems import CommandNotFoundError
from rmixer.spec.profiles import declared_profiles
from rmixer.spec.schema import json_schema

__all__ = [
    "CommandNotFoundError",
    "JobsFile",
    "command_name",
    "declared_profiles",
    "describe_changes",
    "job_from_command",
    "jobs_from_dicts",
    "json_schema",
    "load_jobs_file",
]
