"""Findings of a stage, and the place where it is played: a GPU, or a pretended one."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from diffuserve.models.folders.folder import first_line
from support.pretend_cuda import pretend_cuda

CUDA = torch.device("cuda:0")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class Finding:
    """A thing and what was found of it; `ok` says whether that is as it must be, where it must be so."""

    what: str
    found: float | str
    ok: bool | None = None

    @classmethod
    def failure(cls, what: str, error: Exception) -> "Finding":
        return cls(what, f"failed: {type(error).__name__}: {first_line(error)}", ok=False)


Findings = Iterator[Finding]


@dataclass(frozen=True)
class Setting:
    """The device on which a stage is played, and the folder for what it writes."""

    folder: Path
    is_pretended: bool = False

    def cuda(self) -> AbstractContextManager[Any]:
        """Return a context in which there is a CUDA device."""
        return pretend_cuda() if self.is_pretended else nullcontext()

    @property
    def reference_device(self) -> str:
        """The device of what results are compared with, outside of `cuda()`."""
        return "cpu" if self.is_pretended else "cuda"
