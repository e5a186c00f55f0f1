"""Rows of files."""

from typing import Any

import orjson
import sqlalchemy as sa

from diffuserve.domain.codec import from_json
from diffuserve.domain.jobs.input_file import FilePurpose, InputFile
from diffuserve.domain.safety import Verdict


def file_of(row: sa.Row[Any]) -> InputFile:
    """Return the file in a row of `files`."""
    values = row._asdict()
    verdict, purpose = values.pop("verdict"), FilePurpose(values.pop("purpose"))
    found = None if verdict is None else from_json(Verdict, verdict)
    return InputFile(**values, verdict=found, purpose=purpose)


def dump_verdict(verdict: Verdict | None) -> str | None:
    """Encode a verdict, without details, as JSON text."""
    return None if verdict is None else orjson.dumps(verdict.to_dict()).decode()
