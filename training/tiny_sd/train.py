"""Train tiny-sd: captions that leave something open, text encoders, latents, UNet, folder.

    python training/tiny_sd/train.py                   # into out/training_tiny_sd, assembled in out/tiny-sd
    python training/tiny_sd/train.py --assemble-only   # from what there is, averaged weights

Stop it at any time; the same command goes on where it was. Every stage is saved every two minutes.
"""

import sys
from pathlib import Path

# Both trainings are folders of plain modules, and this one imports what it shares from the other.
sys.path.append(str(Path(__file__).resolve().parents[1] / "tiny_flux"))

if __name__ == "__main__":
    from sd_stages import main

    main()
