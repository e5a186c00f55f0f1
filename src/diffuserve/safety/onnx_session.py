"""Sessions of onnxruntime that get along with whoever else computes in this process."""

from pathlib import Path
from typing import Any


def quiet_session(path: Path) -> Any:
    """On the CPU and on the caller's thread alone.

    By itself onnxruntime starts a thread for each core, and they spin between operations: beside
    torch's threads, which do the same, both would mostly wait. The GPU belongs to denoising.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    for pool in ("intra_op", "inter_op"):
        options.add_session_config_entry(f"session.{pool}.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
