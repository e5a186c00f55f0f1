"""Containers by podman, with the options that it needs within a container of its own."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

BASE = "docker.io/library/python:3.11-slim-bookworm"
_PODMAN = ("podman", "--runtime", "runc", "--cgroup-manager", "cgroupfs")
# The host's network, since a network of their own needs rights that this machine may not have.
_LIMITS = ("--network", "host", "--ulimit", "nofile=20000:20000", "--ulimit", "nproc=4096:4096")
# How this machine reaches package indexes, where it has files for that.
_MOUNTED = ("/etc/ssl/certs", "/etc/pip.conf", "/opt/wheels")
_SECONDS = 1_200


def podman(*arguments: str, check: bool = True) -> str:
    """Run podman and return what it prints; if it fails, the test does, with its messages."""
    done = subprocess.run(
        [*_PODMAN, *arguments], capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    if check and done.returncode:
        pytest.fail(f"podman {' '.join(arguments)}: {(done.stdout + done.stderr)[-3000:]}")
    return done.stdout.strip()


def skip_without_podman() -> None:
    """Skip where a program is missing that builds or runs containers."""
    missing = [name for name in ("podman", "runc", "buildah", "mmdebstrap") if shutil.which(name) is None]
    if missing:
        pytest.skip(f"apt-get install {' '.join(missing)}: containers are neither built nor run")


def make_base(folder: Path) -> None:
    """Have the image that Dockerfiles begin from: pulled before, or made of Debian's packages."""
    if podman("images", "--quiet", BASE):
        return
    tar = folder / "base.tar"
    packages = "--include=python3,python3-venv,ca-certificates"
    subprocess.run(
        ["mmdebstrap", "--quiet", "--variant=minbase", packages, "bookworm", str(tar)],
        check=True,
        timeout=_SECONDS,
    )
    podman("import", str(tar), BASE)
    tar.unlink()


def build(dockerfile: Path, tag: str, context: Path, *options: str) -> None:
    """Build an image without pulling anything."""
    mounts = [f"--volume={path}:{path}:ro" for path in _MOUNTED if Path(path).exists()]
    ignored = f"--ignorefile={dockerfile}.dockerignore"
    fixed = ("--pull=never", "--format", "docker", *_LIMITS, *mounts, ignored)
    podman("build", *fixed, *options, "--file", str(dockerfile), "--tag", tag, str(context))


def once(tag: str, *arguments: str, options: Sequence[str] = ()) -> str:
    """Run a container to its end, and return what it prints."""
    return podman("run", "--rm", *_LIMITS, *options, tag, *arguments)


def start(tag: str, environment: dict[str, str], *arguments: str, options: Sequence[str] = ()) -> str:
    """Start a container, and return its id."""
    given = [f"--env={name}={value}" for name, value in environment.items()]
    return podman("run", "--detach", *_LIMITS, *given, *options, tag, *arguments)
