"""The commit of this source code, where it is known."""

import json
import subprocess
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

_GIT_SECONDS = 2.0


def source_commit() -> str | None:
    """Return the commit; `None` for a package that was installed from an index."""
    return _installed_commit() or checkout_commit(Path(__file__).parents[3])


def _installed_commit() -> str | None:
    """Return the commit that pip recorded (PEP 610), that of `pip install git+https://…`."""
    try:
        origin = json.loads(distribution("diffuserve").read_text("direct_url.json") or "{}")
    except PackageNotFoundError:
        return None
    found: str | None = origin.get("vcs_info", {}).get("commit_id")
    return found


def checkout_commit(root: Path) -> str | None:
    """Return the commit of the checkout at `root`; `None` if it is none, though another may be around it."""
    if not (root / ".git").exists():
        return None
    command = ("git", "-C", str(root), "rev-parse", "HEAD")
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_GIT_SECONDS)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
