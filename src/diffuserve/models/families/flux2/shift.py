"""The shift μ of FLUX.2's noise schedules, by image tokens and steps.

Reference implementations: `compute_empirical_mu` of Black Forest Labs' `flux2/sampling.py` and of diffusers.
"""

_AT_10_STEPS = (8.73809524e-05, 1.89833333)  # slope and start of a line over the image's tokens
_AT_200_STEPS = (0.00016927, 0.45666666)
_MOST_TOKENS = 4_300


def empirical_mu(image_tokens: int, num_steps: int) -> float:
    """Return μ of an image of so many tokens, without its prompt and references.

    Two lines over the tokens, fitted at 10 and at 200 steps, are interpolated by the steps. For more than
    4,300 tokens the one of 200 steps alone counts.
    """
    many = _on(_AT_200_STEPS, image_tokens)
    if image_tokens > _MOST_TOKENS:
        return many
    slope = (many - _on(_AT_10_STEPS, image_tokens)) / 190.0
    return slope * num_steps + (many - 200.0 * slope)


def _on(line: tuple[float, float], image_tokens: int) -> float:
    slope, start = line
    return slope * image_tokens + start
