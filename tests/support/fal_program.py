"""A program that was written for fal: its unmodified client, whose hosts the environment names."""

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import fal_client


def shown(error: fal_client.FalClientHTTPError) -> dict[str, Any]:
    return {"status": error.status_code, "detail": error.message, "type": error.error_type}


def main(application: str) -> dict[str, Any]:
    """Do once what the client can, and return what came of it."""
    client = fal_client.SyncClient()
    states: list[str] = []
    done = client.subscribe(
        application,
        {"prompt": "a cat", "seed": 7, "image_size": "square", "acceleration": "high", "guidance_scale": 3.5},
        with_logs=True,
        on_queue_update=lambda state: states.append(repr(state)),
        hint="session 7",
        priority="low",
        start_timeout=60,
        headers={
            "X-Fal-No-Retry": "1",
            "X-Fal-Object-Lifecycle-Preference": '{"expiration_duration_seconds": 60}',
        },
    )
    again = client.submit(application, {"prompt": "a dog", "num_images": 2})
    waited = {"again": again.get(), "run": client.run(application, {"prompt": "a bee", "sync_mode": True})}
    streamed = list(client.stream(application, {"prompt": "an ant"}))
    held = client.submit("diffuserve/idle", {"prompt": "nobody draws this"})
    position = client.status("diffuserve/idle", held.request_id)
    held.cancel()
    late = client.submit("diffuserve/idle", {"prompt": "nobody starts this"}, start_timeout=1.01)
    while not isinstance(ended := late.status(), fal_client.Completed):
        time.sleep(0.1)
    errors = {}
    calls: dict[str, Callable[[], object]] = {
        "canceled": held.get,
        "late": late.get,
        "bad": lambda: client.run(application, {"prompt": "a cat", "num_images": 0}),
        "unknown": lambda: client.submit("fal-ai/nothing/here", {"prompt": "a cat"}),
        "other": lambda: client.result(application, "job_00000000000000000000"),
    }
    for name, call in calls.items():
        try:
            call()
        except fal_client.FalClientHTTPError as error:
            errors[name] = shown(error)
    facts = {"done": done, "states": states, "streamed": streamed, "position": repr(position)}
    return facts | waited | {"errors": errors, "late": repr(ended), "late_id": late.request_id}


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
