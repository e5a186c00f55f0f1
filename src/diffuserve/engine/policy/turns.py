"""Turns: a request whose images exceed a step's tokens takes its step in several turns of some images each.

Its images are independent (INV-1), so it does not matter which of them share a forward pass. Other requests
run between two turns, so they wait for a step of ordinary size, however many images the request has.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Turn:
    """The images of a request that are denoised next, and the turns `left` in its step, this one included."""

    images: range
    left: int


def next_turn(num_images: int, num_done: int, image_tokens: int, max_tokens: int) -> Turn:
    """Return the turn that follows the first `num_done` images; the turns of a step are about equally large.

    An image that exceeds `max_tokens` by itself has a turn of its own; a clip is an image here.
    """
    waiting = num_images - num_done
    most = max(1, max_tokens // max(1, image_tokens))
    left = -(-waiting // most)
    return Turn(range(num_done, num_done + -(-waiting // left)), left)
