"""Runs Ray Serve with our server in each replica, and prints as JSON what became of it.

Its environment has Ray, and its module path the folder of the tests. The engines generate nothing.
"""

import json
import sys
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import psutil
import ray
from ray import serve

from diffuserve.integrations.ray_serve import ApplicationArguments, application
from support.ports import free_port

ENGINE = (sys.executable, "-m", "diffuserve.testing.null_engine", "--files", "1", "--seconds", "2")
PORT = free_port()
HANG_SECONDS = 120.0


def ask(path: str, body: Any = None) -> tuple[int, Any]:
    """Send a request, and return the status and the JSON of the response."""
    content = None if body is None else json.dumps(body).encode()
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", content, headers)
    try:
        with urllib.request.urlopen(request, timeout=HANG_SECONDS) as response:
            return response.status, json.load(response)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def num_running() -> int:
    """Return how many replicas serve."""
    deployment = serve.status().applications["default"].deployments["diffuserve"]
    running: int = deployment.replica_states.get("RUNNING", 0)
    return running


def engines() -> list[psutil.Process]:
    """Return the engines of all replicas."""
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "diffuserve.testing.null_engine" in " ".join(child.cmdline())]


def reached(condition: Callable[[], bool]) -> bool:
    """Wait until a condition holds; return whether it did in time."""
    end = time.monotonic() + HANG_SECONDS
    while not (holds := condition()) and time.monotonic() < end:
        time.sleep(0.2)
    return holds


def main() -> None:
    ray.init(
        "local",  # not the cluster that Ray's folder for temporary files names, which may be another's
        num_cpus=3,
        num_gpus=0,
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
    )
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    # As Serve hands them over from a command line: texts.
    replicas = {"no_auth": "true", "num_gpus": "0", "max_replicas": "2", "downscale_delay_seconds": "1"}
    settings = {"prompt_filter": "policy", "prompt_filter_processes": "0", "zygote": "false"}
    settings |= {"drain_seconds": "1", "scale_target_seconds": "0.01"}
    arguments = ApplicationArguments.model_validate({**replicas, **settings, "engine_command": ENGINE})
    serve.run(application(arguments))
    told: dict[str, Any] = {"one": num_running()}
    told["drawn"] = ask("/v1/images/generations", {"prompt": "a star"})
    told["refused"] = ask("/v1/images/generations", {"prompt": "a star", "size": "x"})
    asked = {"prompt": "a star", "num_inference_steps": 100}
    items = [{"custom_id": f"{number}", "input": asked} for number in range(1_000)]
    batch = ask("/v1/batches", {"items": items})[1]  # 100 s of work: much more than a model takes to load
    told["grew"] = reached(lambda: num_running() == 2)
    cancel = f"/v1/batches/{batch['id']}/cancel"
    assert reached(lambda: ask(cancel, {})[0] < 300)  # the other replica does not know it
    told["shrank"] = reached(lambda: num_running() == 1 and len(engines()) == 1)
    [engine] = engines()
    parent = engine.parent()
    assert parent is not None
    parent.kill()
    told["engine_ended_with_its_replica"] = reached(lambda: not engine.is_running())
    told["another_replica"] = reached(lambda: len(engines()) == 1 and num_running() == 1)
    told["drawn_again"] = ask("/v1/images/generations", {"prompt": "a star"})[0]
    serve.shutdown()
    told["engines_left"] = not reached(lambda: not engines())
    ray.shutdown()
    print(json.dumps(told))


if __name__ == "__main__":
    main()
