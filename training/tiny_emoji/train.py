"""Train tiny-emoji from nothing: pictures, captions, VAE, text encoders, denoiser, folder.

    python training/tiny_emoji/train.py    # into out/tiny_emoji; goes on where it was

Stop it at any time; the same command goes on. Every stage is saved every two minutes.
"""

import sys
from pathlib import Path

# Both trainings are folders of plain modules, and this one imports what it shares from the other.
sys.path.append(str(Path(__file__).resolve().parents[1] / "tiny_flux"))

if __name__ == "__main__":
    from emoji_stages import main

    main()
