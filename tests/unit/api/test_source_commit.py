"""The commit of the source code."""

import subprocess
from pathlib import Path

from diffuserve.api.source_commit import checkout_commit


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=test", "-c", "user.email=test@example.com")
    done = subprocess.run(
        ("git", "-C", str(folder), *identity, *arguments), check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


def test_a_checkout_knows_its_commit_and_the_folder_of_another_repository_none(tmp_path: Path) -> None:
    git(tmp_path, "init")
    git(tmp_path, "commit", "--allow-empty", "-m", "first")
    assert checkout_commit(tmp_path) == git(tmp_path, "rev-parse", "HEAD")
    installed = tmp_path / "venv" / "lib"
    installed.mkdir(parents=True)
    assert checkout_commit(installed) is None


def test_what_is_no_repository_has_no_commit(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    assert checkout_commit(tmp_path) is None
