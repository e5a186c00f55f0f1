"""A server is killed while it reads, runs and writes a batch from a file; the next one goes on."""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from openai.types import Batch

from support.file_batches import ANYBODY
from support.waiting import HANG_SECONDS

NUM_LINES = 600
NULL_ENGINE = f"{sys.executable} -m diffuserve.testing.null_engine --seconds 0.01 --files 1"


@contextmanager
def serving(folder: Path, port: str) -> Iterator[OpenAI]:
    """Serve within the block, and kill all that serves at its end."""
    settings = {
        "DATA_DIR": folder / "data",
        "CACHE_DIR": folder / "cache",
        "LEASE_SECONDS": 6,
        "HEARTBEAT_SECONDS": 2,
    }
    environment = {**os.environ, **{f"DIFFUSERVE_{name}": str(value) for name, value in settings.items()}}
    with (folder / "server.log").open("a", encoding="utf-8") as log:
        command = [
            sys.executable,
            "-m",
            "diffuserve",
            "serve",
            "--port",
            port,
            "--engine-command",
            NULL_ENGINE,
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True, env=environment)
    assert process.stdout is not None
    try:
        address = process.stdout.readline().strip()
        with OpenAI(base_url=f"{address}/v1", api_key=ANYBODY, timeout=HANG_SECONDS) as client:
            yield client
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def request(number: int) -> dict[str, Any]:
    body = {"prompt": "a star", "seed": number, "n": 11 if number % 50 == 7 else 1}
    return {"custom_id": str(number), "method": "POST", "url": "/v1/images/generations", "body": body}


def until(client: OpenAI, batch: Batch, statuses: set[str], seconds: float = HANG_SECONDS) -> Batch:
    """Return the batch once it has one of these statuses, or `seconds` have passed."""
    until = time.monotonic() + seconds
    while (batch := client.batches.retrieve(batch.id)).status not in statuses and time.monotonic() < until:
        time.sleep(0.05)
    return batch


@pytest.mark.slow
def test_no_line_is_lost_or_answered_twice_however_often_the_server_is_killed(tmp_path: Path) -> None:
    content = "\n".join(json.dumps(request(number)) for number in range(NUM_LINES)).encode()
    with serving(tmp_path, "0") as client:
        file = client.files.create(file=("stars.jsonl", content), purpose="batch")
        batch = client.batches.create(
            input_file_id=file.id, endpoint="/v1/images/generations", completion_window="24h"
        )
    chance = random.Random(3)
    seen = []
    for _ in range(2):  # a job that three workers were lost with would fail at the next loss
        with serving(tmp_path, "0") as client:
            until(client, batch, {"in_progress", "finalizing", "completed"})
            seen.append(until(client, batch, {"completed"}, chance.uniform(0.1, 3.0)).status)
    with serving(tmp_path, "0") as client:
        done = until(client, batch, {"completed", "failed"})
        files = [
            client.files.content(file_id or "").text for file_id in (done.output_file_id, done.error_file_id)
        ]
    drawn, refused = [[json.loads(line) for line in file.splitlines()] for file in files]
    assert done.status == "completed", seen
    assert Counter(answer["custom_id"] for answer in drawn + refused) == Counter(map(str, range(NUM_LINES)))
    codes = Counter(answer["response"]["body"]["error"]["code"] for answer in refused)
    assert codes == {"invalid_params": NUM_LINES // 50}
