"""Train tiny-emoji from nothing: pictures, captions, VAE, text encoders, denoiser, folder.

    python training/tiny_emoji/train.py    # into out/tiny_emoji; goes on where it was

Stop it at any time; the same command goes on. Every stage is saved every two minutes.
"""

import sys
from pathlib import Path

# The trainings are folders of plain modules, and this one imports what it shares from the others.
for shared in ("tiny_flux", "tiny_video", "tiny_sd"):
    sys.path.append(str(Path(__file__).resolve().parents[1] / shared))

if __name__ == "__main__":
    from emoji_stages import main

    main()
