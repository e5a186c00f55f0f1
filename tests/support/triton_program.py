"""Triton's own client as a program, run where it is installed: requests as JSON on stdin, answers on stdout.

Each request has a `transport`, http or grpc, its `inputs` and, if it does not want all, its `outputs`. A text
that begins with `base64:` is bytes. All are sent at once, each by a client of its own, or `at` seconds after
the start; answers say how many `seconds` they took from then on. Inputs of a model that Triton batches are
`batched`.
"""

import base64
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http
from tritonclient.utils import InferenceServerException


def main() -> None:
    requests = json.load(sys.stdin)
    with ThreadPoolExecutor(len(requests)) as pool:
        start = time.monotonic()
        json.dump(list(pool.map(partial(timed, start), requests)), sys.stdout)


def timed(start: float, request: dict[str, Any]) -> dict[str, Any]:
    due = start + request.get("at", 0.0)
    time.sleep(max(due - time.monotonic(), 0.0))
    found = answer(request)
    return {**found, "seconds": time.monotonic() - due}


def answer(request: dict[str, Any]) -> dict[str, Any]:
    module, port = {
        "http": (tritonclient.http, sys.argv[1]),
        "grpc": (tritonclient.grpc, sys.argv[2]),
    }[request["transport"]]
    waits = {"network_timeout": 170.0, "connection_timeout": 170.0} if module is tritonclient.http else {}
    client = module.InferenceServerClient(f"127.0.0.1:{port}", **waits)
    names = request.get("outputs")
    outputs = None if names is None else [module.InferRequestedOutput(name) for name in names]
    try:
        made = partial(tensor, module, "batched" in request)
        inputs = [made(*each) for each in request["inputs"].items()]
        result = client.infer("diffuserve", inputs, outputs=outputs)
    except InferenceServerException as error:
        return {"error": error.message(), "status": str(error.status())}
    return {name: plain(result.as_numpy(name)) for name in names or ("images", "files", "seeds", "warnings")}


def tensor(module: Any, is_batched: bool, name: str, value: Any) -> Any:
    values = value if isinstance(value, list) else [value]
    if isinstance(values[0], str):
        array, kind = np.array([as_bytes(each) for each in values], np.object_), "BYTES"
    else:
        array = np.array(values)
        kind = "INT64" if array.dtype == np.int64 else "FP64"
    array = array[None] if is_batched else array
    made = module.InferInput(name, list(array.shape), kind)
    made.set_data_from_numpy(array)
    return made


def as_bytes(text: str) -> bytes:
    return base64.b64decode(text[7:]) if text.startswith("base64:") else text.encode()


def plain(array: Any) -> Any:
    """Return an array as JSON: texts as base64, pixels as their shape and mean, numbers as they are."""
    if array is None:
        return None
    if array.dtype == np.object_:
        return [base64.b64encode(value).decode() for value in array.reshape(-1)]
    return {"shape": array.shape, "mean": float(array.mean())} if array.ndim > 1 else array.tolist()


if __name__ == "__main__":
    main()
