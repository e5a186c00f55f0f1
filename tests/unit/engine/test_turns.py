"""The images of a large request that share a turn."""

from hypothesis import given
from hypothesis import strategies as st

from diffuserve.engine.policy.turns import Turn, next_turn


def turns(num_images: int, image_tokens: int, max_tokens: int) -> list[Turn]:
    """Return the turns of a step."""
    found, num_done = list[Turn](), 0
    while num_done < num_images:
        found.append(next_turn(num_images, num_done, image_tokens, max_tokens))
        num_done = found[-1].images.stop
    return found


@given(st.integers(1, 16), st.integers(1, 5_000), st.integers(1, 20_000))
def test_every_image_has_one_turn_and_no_turn_exceeds_a_step_but_for_a_single_image(
    num_images: int, image_tokens: int, max_tokens: int
) -> None:
    found = turns(num_images, image_tokens, max_tokens)
    assert [image for turn in found for image in turn.images] == list(range(num_images))
    assert [turn.left for turn in found] == list(range(len(found), 0, -1))
    sizes = [len(turn.images) for turn in found]
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) == 1 or max(sizes) * image_tokens <= max_tokens


def test_images_that_fit_a_step_have_one_turn() -> None:
    assert next_turn(4, 0, 250, 1_000) == Turn(range(4), left=1)
    assert next_turn(5, 0, 250, 1_000) == Turn(range(3), left=2)
    assert next_turn(5, 3, 250, 1_000) == Turn(range(3, 5), left=1)
