"""What diffusers and transformers log in a run becomes its warnings, and appears in no log.

Their messages may quote the prompt, which no log may have.
"""

import functools
import logging

from diffuserve.models.families.any_pipeline.running.run import current_run

_LIBRARIES = ("diffusers", "transformers")
_MAX_WARNINGS, _MAX_CHARACTERS = 8, 300


@functools.cache  # once for a process
def catch_warnings() -> None:
    """Catch what the libraries log from now on, wherever a run is under way."""
    for library in _LIBRARIES:
        for handler in logging.getLogger(library).handlers:
            handler.addFilter(_is_of_no_run)


def _is_of_no_run(record: logging.LogRecord) -> bool:
    run = current_run()
    if run is None:
        return True
    if record.levelno >= logging.WARNING and len(run.warnings) < _MAX_WARNINGS:
        run.warnings[" ".join(record.getMessage().split())[:_MAX_CHARACTERS]] = None
    return False
