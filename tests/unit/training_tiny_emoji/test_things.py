"""Things are chosen from published names by rules, without people, and named by what tells them apart."""

from typing import Any

import pytest
import torch
from PIL import Image

from emoji_packages import Package, check
from sprites import cut_out
from things import choose_things


def entry(label: str, *tags: str, order: int, group: int = 3, **more: Any) -> dict[str, Any]:
    return {
        "label": label,
        "tags": list(tags),
        "hexcode": f"1F{order}",
        "order": order,
        "group": group,
        "subgroup": 34,
        "version": 1,
    } | more


def test_people_letters_and_flags_are_left_out() -> None:
    chosen = choose_things(
        [
            entry("fox", order=1),
            entry("person", order=2, group=1),
            entry("runner", order=3, skins=[]),
            entry("A button", order=4, group=8),
            entry("flag in hole", order=5),
        ]
    )
    assert [thing.name for thing in chosen] == ["fox"]


def test_a_tag_names_a_thing_unless_many_share_it_or_it_is_said_of_others() -> None:
    dog, wolf, cat = choose_things(
        [
            entry("dog face", "puppy", "pet", "face", "small dog", order=1),
            entry("wolf", "face", "puppy", "howl", order=2),
            entry("cat", "face", "pet", "wolf", order=3),
        ]
    )
    assert dog.names == ("dog face", "puppy", "pet")
    assert wolf.names == ("wolf", "howl")
    assert cat.names == ("cat",)


def test_one_of_each_kind_comes_first() -> None:
    chosen = choose_things(
        [entry("fox", order=1), entry("wolf", order=2), entry("rose", order=3, subgroup=40)]
    )
    assert [thing.name for thing in chosen] == ["fox", "rose", "wolf"]


def test_a_picture_is_cut_out_and_centerd() -> None:
    image = Image.new("RGBA", (40, 40))
    image.paste((255, 0, 0, 255), (4, 10, 24, 20))
    pixels = cut_out(image, 20)
    assert pixels.shape == (4, 20, 20)
    opaque = pixels[3].amax(1) > 128
    assert opaque.nonzero()[:, 0].tolist() == list(range(5, 15))
    assert pixels[3].amax(0).min() == 255
    assert torch.equal(pixels[0], pixels[3])


def test_other_bytes_than_the_pinned_ones_are_refused(tmp_path: Any) -> None:
    package = Package("@a/b", "1.0", "00")
    path = tmp_path / package.archive
    path.write_bytes(b"other")
    assert path.name == "a-b-1.0.tgz"
    with pytest.raises(ValueError, match="instead of 00"):
        check(package, path)
