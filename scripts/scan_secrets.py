"""Look for secrets in the tracked files, by detect-secrets.

    python scripts/scan_secrets.py [--update]

Exit code 1 for something that looks like a secret and is not in `.secrets.baseline`; `--update` adds what
was found, for a person to look at before it is committed.
"""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
BASELINE = ".secrets.baseline"
_MOVED = 3  # the hook's exit code where only line numbers have changed
# Weights and images hold no text, a vocabulary no secrets, and the versions are public.
_NO_SECRETS = (
    r".*\.(safetensors|onnx|png|jpg|webp|woff2|xz)|.*/tokenizer\.json|.*/vocab\.json|constraints\.txt"
    r"|scripts/gpu_kit_wheels\.txt"
)


def main(arguments: Sequence[str]) -> int:
    exclude = ["--exclude-files", _NO_SECRETS]
    if "--update" in arguments:
        return _run("detect_secrets", "scan", "--baseline", BASELINE, *exclude).returncode
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [name for name in listed.stdout.split("\0") if name and name != BASELINE]
    with TemporaryDirectory() as folder:  # the hook rewrites a baseline whose line numbers have moved
        baseline = shutil.copy(ROOT / BASELINE, folder)
        found = _run("detect_secrets.pre_commit_hook", "--baseline", baseline, *exclude, *files)
    if found.returncode in (0, _MOVED):
        return 0
    print(found.stdout, file=sys.stderr)
    return 1


def _run(module: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", module, *arguments]
    return subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
