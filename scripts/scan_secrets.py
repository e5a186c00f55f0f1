"""Look for secrets in the tracked files, by detect-secrets.

    python scripts/scan_secrets.py [--update]

Exit code 1 for something that looks like a secret and is not in `.secrets.baseline`; `--update` adds what
was found, for a person to look at before it is committed.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
BASELINE = ".secrets.baseline"
# Weights and images hold no text, a vocabulary no secrets, and the versions are public.
_NO_SECRETS = r".*\.(safetensors|onnx|png|jpg|webp|woff2)|.*/tokenizer\.json|.*/vocab\.json|constraints\.txt"


def main(arguments: Sequence[str]) -> int:
    exclude = ["--exclude-files", _NO_SECRETS]
    if "--update" in arguments:
        return _run("detect_secrets", "scan", "--baseline", BASELINE, *exclude)
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [name for name in listed.stdout.split("\0") if name and name != BASELINE]
    return _run("detect_secrets.pre_commit_hook", "--baseline", BASELINE, *exclude, *files)


def _run(module: str, *arguments: str) -> int:
    return subprocess.run([sys.executable, "-m", module, *arguments], cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
