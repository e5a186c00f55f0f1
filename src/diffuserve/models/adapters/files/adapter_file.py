"""Opens an adapter file and checks what its header says, before a tensor is read.

Importing this loads no torch.
"""

import os
from pathlib import Path
from typing import Final

from diffuserve.domain.errors import InvalidAdapter, InvalidModel
from diffuserve.domain.models.adapter_entry import MAX_ADAPTER_BYTES
from diffuserve.models.checkpoint_files.safetensors_file import (
    WEB_PAGE,
    SafetensorsFile,
    is_web_page,
    open_safetensors,
)

MAX_RANK: Final = 2048
_MAX_HEADER, _MAX_TENSORS, _MAX_NAME = 16 * 2**20, 20_000, 500
_LENGTH_BYTES = 8
_DTYPES = ("F32", "F16", "BF16")


def open_adapter(path: Path) -> SafetensorsFile:
    """Return an adapter file whose header was read and checked: size, tensors, numbers.

    Raise `InvalidAdapter` for all else, such as a pickle or a file of another format.
    """
    if path.suffix.lower() != ".safetensors":
        raise InvalidAdapter(f"{path}: adapters are read from .safetensors alone; pickles can run code")
    if not path.is_file():
        raise InvalidAdapter(f"{path}: {'a folder' if path.is_dir() else 'no such file'}")
    if is_web_page(path):
        raise InvalidAdapter(f"{path}: {WEB_PAGE}")
    _check_size(path)
    try:
        file = open_safetensors(path)
    except InvalidModel as error:
        raise InvalidAdapter(str(error)) from error
    _check_tensors(file)
    return file


def _check_size(path: Path) -> None:
    size = os.path.getsize(path)
    if size > MAX_ADAPTER_BYTES:
        raise InvalidAdapter(f"{path}: {size:,} bytes, where adapters have at most {MAX_ADAPTER_BYTES:,}")
    with path.open("rb") as opened:
        header = int.from_bytes(opened.read(_LENGTH_BYTES), "little")
    if header > _MAX_HEADER:
        raise InvalidAdapter(f"{path}: a header of {header:,} bytes, where at most {_MAX_HEADER:,} are read")


def _check_tensors(file: SafetensorsFile) -> None:
    if len(file.tensors) > _MAX_TENSORS:
        raise InvalidAdapter(
            f"{file.path}: {len(file.tensors):,} tensors; adapters have at most {_MAX_TENSORS:,}"
        )
    for name, info in file.tensors.items():
        if len(name) > _MAX_NAME:
            raise InvalidAdapter(f"{file.path}: {name[:80]}…: a name of {len(name):,} characters")
        if info.stored_as not in _DTYPES:
            raise InvalidAdapter(
                f"{file.path}: {name} is stored as {info.stored_as}; read are {', '.join(_DTYPES)}"
            )
