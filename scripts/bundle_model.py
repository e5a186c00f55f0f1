"""Put a model's folder, as training wrote it, among those that ship with the package.

    python scripts/bundle_model.py out/tiny-flux

The folder's name is the model's. What the repository tracks of its weights is packed.
"""

import shutil
import sys
from pathlib import Path

import diffuserve.models.bundled
from diffuserve.models.bundled.packed_weights import pack_weights

_HOME = Path(diffuserve.models.bundled.__file__).parent


def main(folder: Path) -> None:
    shutil.copytree(folder, _HOME / folder.name, dirs_exist_ok=True)
    for path in pack_weights(_HOME, folder.name):
        print(path)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]).resolve())
