"""Sounds on the page: asked for with their length and lyrics, and played where they are shown."""

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, expect

from diffuserve.media.sound_writer import save_sound
from diffuserve.media.waveform import waveform
from diffuserve.testing.fake_pipeline import FAKE_SOUND_SPEC
from support.hand_page import Hand, generate, newest
from support.image_files import file_of
from support.sounds import tone
from support.waiting import block_until

OpenPage = Callable[[str], Page]


def test_a_sound_is_asked_for_and_played(
    hand: Hand, open_page: OpenPage, axe: Callable[[Page], None], tmp_path: Path
) -> None:
    singer = hand.register("by ear", FAKE_SOUND_SPEC)
    block_until(lambda: hand.model("fake-sound")["status"] == "ready")
    page = open_page(hand.address)
    page.goto("/?model=fake-sound")
    expect(page.get_by_label("Width", exact=True)).to_have_count(0)
    page.get_by_label("Prompt", exact=True).fill("rain on a tin roof")
    page.get_by_label("Lyrics").fill("drip\ndrop")
    page.get_by_label("Seconds").fill("2")
    axe(page)
    generate(page)
    [lease] = hand.does(singer.claim(wait=30.0))
    assert lease.kind == "audio.generate"
    assert (lease.input["seconds"], lease.input["lyrics"], lease.num_previews) == (2, "drip\ndrop", 0)

    sound = tone(seconds=2.0, rate=16_000)
    save_sound(sound, tmp_path / "0.wav", {})
    stored = hand.does(singer.upload(lease, "0.wav", (tmp_path / "0.wav").read_bytes())).json()
    audio = {"role": "audio", "content_type": "audio/wav", "index": 0, "seed": 7}
    audio |= {"seconds": 2.0, "channels": 2, "sample_rate": 16_000}
    drawn = hand.does(singer.upload(lease, "thumbnail.webp", file_of(waveform(sound), "WEBP"))).json()
    picture = {"role": "thumbnail", "content_type": "image/webp", "width": 256, "height": 96}
    hand.does(singer.finish(lease, [stored | audio, drawn | picture])).raise_for_status()

    expect(newest(page).locator("audio")).to_have_js_property("duration", 2)
    expect(newest(page).locator("audio")).to_have_attribute("controls", "")
    page.goto("/gallery?kind=audio.generate")
    tile = page.get_by_role("listitem").filter(has_text="rain on a tin roof")
    expect(tile.get_by_text("sound", exact=False).first).to_be_visible()
    tile.get_by_role("link").click()
    expect(page.locator("audio")).to_have_js_property("duration", 2)
    expect(page.get_by_text("16,000 Hz")).to_be_visible()
    axe(page)
