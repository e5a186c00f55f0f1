"""Train an adapter with which tiny-emoji draws everything cast in gold; then judge what it draws.

    python training/tiny_emoji/train_look.py              # into out/tiny_emoji_look, out/gilded.safetensors
    python training/tiny_emoji/train_look.py --judge 200  # and measure so many held-out drawings

Stop it at any time; the same command goes on where it was.
"""

import sys
from pathlib import Path

# As in `train.py`: what is shared with the other training is imported from its folder.
sys.path.append(str(Path(__file__).resolve().parents[1] / "tiny_flux"))

if __name__ == "__main__":
    from look_adapter import main

    main()
