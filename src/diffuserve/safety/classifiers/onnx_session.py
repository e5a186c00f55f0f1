"""Sessions of onnxruntime that leave the cores to the rest of this process."""

from pathlib import Path
from typing import Any


def single_threaded_session(path: Path) -> Any:
    """Return a session that runs on the CPU, on the caller's thread.

    By default onnxruntime starts a thread for each core, and they spin between operations. So do torch's
    threads, and both together would mostly wait for cores. The GPU is left to denoising.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    for pool in ("intra_op", "inter_op"):
        options.add_session_config_entry(f"session.{pool}.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
