"""Train tiny-video from nothing: clips, captions, VAE, text encoder, denoiser, folder.

    python training/tiny_video/train.py                                     # into out/training_tiny_video
    python training/tiny_video/train.py --resume tiny-video --steps 26500   # go on from what is shipped
    python training/tiny_video/train.py --evaluate 120                      # measure what there is so far

Stop it at any time; the same command goes on where it was. Every stage is saved every two minutes.
"""

import sys
from pathlib import Path

# Both trainings are folders of plain modules, and this one imports what it shares from the other.
sys.path.append(str(Path(__file__).resolve().parents[1] / "tiny_flux"))

if __name__ == "__main__":
    from stages import main

    main()
