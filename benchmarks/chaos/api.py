"""`diffuserve api` on SQLite, with a clock that is off by the seconds in a file.

python -m benchmarks.chaos.api FILE api --port 8000 …
"""

import sqlite3
import sys
import time
from pathlib import Path

import sqlalchemy as sa

from diffuserve.cli.main import main

_EPOCH_DAYS = 2_440_587.5  # Julian day of 1970-01-01


def julian_day_of(offset_file: Path) -> float:
    return (time.time() + float(offset_file.read_text())) / 86_400.0 + _EPOCH_DAYS


def serve_with_clock(offset_file: Path) -> None:
    @sa.event.listens_for(sa.Engine, "connect")
    def set_clock(connection: object, _record: object) -> None:
        if isinstance(connection, sqlite3.Connection):
            connection.create_function("julianday", 1, lambda _now: julian_day_of(offset_file))

    main()


if __name__ == "__main__":
    serve_with_clock(Path(sys.argv.pop(1)))
