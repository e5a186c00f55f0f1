"""The playground, in a real browser: the first image, live progress, failures, edits, and code to copy."""

import re
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from io import BytesIO

import httpx
import pytest
from PIL import ExifTags, Image
from playwright.sync_api import APIResponse, Browser, Page, Route, expect

from diffuserve.domain.workers.model_orders import ModelOrder
from support.browser import Axe, OpenPage, Screenshot, assert_fits
from support.clips import complete_clip
from support.hand_page import ABLE, Hand, generate, newest
from support.image_files import png
from support.waiting import HANG_SECONDS, block_until

MARKUP = "<b>bold</b><img src=x onerror=\"document.title='owned'\">"
DONE = re.compile("^Done in")


def test_a_newcomer_makes_the_first_image(page: Page, axe: Axe, screenshot: Screenshot) -> None:
    """Type nothing: the example is there."""
    page.goto("/")
    expect(page.get_by_text("Ready", exact=True)).to_be_visible()
    expect(page.get_by_label("Prompt", exact=True)).to_be_focused()
    page.keyboard.press("Control+Enter")
    card = newest(page)
    expect(card.get_by_role("status")).to_have_text(DONE)
    shown = card.get_by_role("img", name="a red circle on a white background")
    expect(shown).to_be_visible()
    assert shown.evaluate("image => image.naturalWidth") == 128
    axe(page)
    screenshot(page, "playground-done")
    with page.expect_download() as download:
        card.get_by_role("link", name="Download").click()
    with Image.open(download.value.path()) as image:
        assert image.size == (128, 128)


def test_screenshots_show_variations_while_they_are_drawn(
    open_page: OpenPage, axe: Axe, screenshot: Screenshot
) -> None:
    page = open_page(dark=True)
    page.goto("/?prompt=a+blue+star+on+a+black+background&num_inference_steps=4")
    card = generate(page)
    expect(card.get_by_role("status")).to_have_text(DONE)
    card.get_by_role("button", name="Variations").click()
    card = newest(page)
    expect(card.get_by_role("progressbar")).to_have_count(4)
    expect(card.get_by_role("img", name="Preview").first).to_be_visible()
    screenshot(page, "playground-running-dark")
    expect(card.get_by_role("status")).to_have_text(DONE)
    seeds = card.get_by_role("button", name=re.compile("^Seed")).all_inner_texts()
    assert len(set(seeds)) == 4
    axe(page)


def test_progress_and_preview_change_with_each_step(open_hand: Callable[..., Page], hand: Hand) -> None:
    page = open_hand(prompt=MARKUP)
    card = generate(page)
    expect(card.get_by_role("status")).to_contain_text("Next in the queue")
    expect(card.get_by_text(MARKUP)).to_be_visible()
    lease = hand.claim()
    assert lease.num_previews == 3, "one after each step but the last"
    bar, preview = (
        card.get_by_role("progressbar", name="Progress of image 1"),
        card.get_by_alt_text("Preview"),
    )
    for step in (1, 2, 3):
        sent = hand.report(lease, step, 60 * step)
        expect(bar).to_have_js_property("value", step / 4)
        expect(card.get_by_role("status")).to_have_text(f"Step {step} of 4")
        expect(preview).to_have_attribute("src", sent)
    page.reload()
    expect(newest(page).get_by_role("progressbar")).to_be_visible()
    hand.report(lease, 3, 240)
    expect(newest(page).get_by_role("progressbar")).to_have_js_property("value", 0.75)
    hand.does(hand.worker.complete(lease))
    expect(newest(page).get_by_role("status")).to_have_text(DONE)
    expect(newest(page).get_by_alt_text(MARKUP)).to_be_visible()
    assert page.title() != "owned"
    newest(page).get_by_role("button", name="Timings").click()
    expect(newest(page).get_by_text("Drawing")).to_be_visible()


def test_an_answer_that_is_older_than_the_stream_changes_nothing(
    open_hand: Callable[..., Page], hand: Hand
) -> None:
    page = open_hand(prompt="a star")
    card = generate(page)
    expect(card.get_by_role("status")).to_contain_text("Next in the queue")
    late: list[tuple[Route, APIResponse]] = []
    page.route(re.compile(r"/v1/jobs/[^/]+$"), lambda route: late.append((route, route.fetch())))
    lease = hand.claim()
    while not any(answer.json()["status"] == "running" for _, answer in late):
        page.wait_for_timeout(20)
    hand.report(lease, 2, 120)
    bar = card.get_by_role("progressbar", name="Progress of image 1")
    expect(bar).to_have_js_property("value", 0.5)
    for route, answer in list(late):
        route.fulfill(response=answer)
        page.wait_for_timeout(50)
        expect(bar).to_have_js_property("value", 0.5, timeout=1.0)


def test_places_in_the_queue_are_a_range_and_jobs_are_canceled_at_once(
    open_hand: Callable[..., Page], hand: Hand
) -> None:
    page = open_hand(prompt="a moon")
    first = generate(page).get_by_role("status")
    expect(first).to_contain_text("Next in the queue")
    page.get_by_label("Prompt", exact=True).fill("a star")
    second = generate(page)
    expect(second.get_by_role("status")).to_contain_text("Place 2 in the queue")
    second.get_by_role("button", name="Cancel").click()
    expect(second.get_by_role("alert")).to_contain_text("Canceled")
    lease = hand.claim()
    expect(page.get_by_role("article", name="a moon").get_by_role("status")).to_have_text("Starting")
    page.get_by_role("article", name="a moon").get_by_role("button", name="Cancel").click()
    expect(page.get_by_role("article", name="a moon").get_by_role("status")).to_have_text("Canceling…")
    hand.does(hand.worker.heartbeat(lease))
    hand.does(hand.worker.release(lease))
    expect(page.get_by_role("article", name="a moon").get_by_role("alert")).to_contain_text("Canceled")


def test_failed_and_withheld_jobs_say_why_and_what_to_do(open_hand: Callable[..., Page], hand: Hand) -> None:
    page = open_hand(prompt="a star")
    for code, title, remedy in (
        ("broken", "Failed", "Change the settings, or try again"),
        ("output_blocked", "Withheld", "Try another seed, or reword the prompt"),
    ):
        card = generate(page)
        expect(card.get_by_role("status")).to_contain_text("Next in the queue")
        lease = hand.claim()
        expect(card.get_by_role("status")).to_have_text("Starting")
        hand.report(lease, 1, 60)
        expect(card.get_by_alt_text("Preview")).to_be_visible()
        hand.does(hand.worker.fail(lease, code))
        expect(card.get_by_role("alert")).to_contain_text(title)
        expect(card.get_by_role("alert")).to_contain_text(f"The engine says {code}")
        expect(card.get_by_role("alert")).to_contain_text(remedy)
        assert card.locator("img").count() == 0, "nothing is left of what was withheld"
        card.get_by_role("button", name="Hide").click()
    expect(page.get_by_text("Your images appear here")).to_be_visible()


def test_errors_stand_beside_their_fields(open_hand: Callable[..., Page], axe: Axe) -> None:
    page = open_hand(prompt="a star", width=100, height=64, num_inference_steps=2)
    page.get_by_role("button", name="Generate").click()
    width = page.get_by_label("Width")
    expect(width).to_have_attribute("aria-invalid", "true")
    expect(width).to_be_focused()
    expect(page.locator("#setting-width-error")).to_have_text(
        "Must be a multiple of 16 pixels; try 96 or 112"
    )
    axe(page)
    width.fill("96")
    expect(page.locator("#setting-width-error")).to_have_count(0)
    page.get_by_label("Prompt", exact=True).fill("child porn")
    page.get_by_role("button", name="Generate").click()
    expect(page.locator("#setting-prompt-error")).to_contain_text("does not allow this prompt")
    expect(page.get_by_role("article")).to_have_count(0)


def test_a_size_that_was_never_learned_and_a_long_run_are_told_before_it(
    open_hand: Callable[..., Page], axe: Axe
) -> None:
    page = open_hand(prompt="a star", width=192, height=64)
    told = page.locator(".estimate")
    expect(told).to_contain_text("Able has learned images of 64 to 128 pixels a side; at 192x64")
    axe(page)
    slow = {"cost_seconds": 28.4, "warnings": []}
    page.route("**/v1/jobs/estimate", lambda route: route.fulfill(json=slow))
    page.get_by_role("radio", name="Large 128×128").check(force=True)
    expect(told).to_have_text("Takes about 28 s, without a queue.")


def test_a_full_queue_is_counted_down(open_hand: Callable[..., Page]) -> None:
    page = open_hand(prompt="a star")
    for number in range(3):
        generate(page)
        expect(page.get_by_role("article")).to_have_count(number + 1)
    page.get_by_role("button", name="Generate").click()
    refusal = page.get_by_role("form", name="New image").get_by_role("alert")
    expect(refusal).to_contain_text("3 jobs")
    expect(refusal).to_contain_text("Try again")
    expect(page.get_by_role("article")).to_have_count(3)


def test_the_page_begins_with_the_model_of_jobs_that_name_none(open_page: OpenPage, hand: Hand) -> None:
    page = open_page(hand.address)

    def with_default(route: Route) -> None:
        if route.request.is_navigation_request():
            return route.continue_()
        answer = route.fetch()
        return route.fulfill(response=answer, json={**answer.json(), "default_model": "clips"})

    page.route(f"{hand.address}/", with_default)
    page.goto("/")
    expect(page.get_by_label("Model", exact=True)).to_have_value("clips")
    page.goto("/?model=able")
    expect(page.get_by_label("Model", exact=True)).to_have_value("able")


def test_the_form_offers_more_prompts_that_the_model_draws_well(open_hand: Callable[..., Page]) -> None:
    page = open_hand()
    page.get_by_text("More prompts to try").click()
    page.get_by_role("button", name="a fist").click()
    expect(page.get_by_label("Prompt", exact=True)).to_have_value("a fist")
    expect(page.get_by_text("More prompts to try")).to_have_count(0)


def test_the_form_offers_what_the_model_has_and_keeps_it_in_the_address(
    open_hand: Callable[..., Page], hand: Hand
) -> None:
    page = open_hand()
    expect(page.get_by_placeholder("a hand that waves")).to_be_visible()
    page.get_by_role("button", name="Try “a hand that waves”").click()
    page.get_by_role("radio", name="Large 128×128").check(force=True)
    page.get_by_text("More settings").click()
    page.get_by_label("Negative prompt").fill("text")
    page.get_by_label("Guidance").fill("3.5")
    page.get_by_label("Sampler").select_option("ddim")
    page.get_by_label("Priority").select_option("interactive")
    page.get_by_label("Images").fill("2")
    page.get_by_label("Format").select_option("webp")
    page.get_by_role("button", name="Draw a seed").click()
    seed = page.get_by_label("Seed", exact=False).first.input_value()
    page.wait_for_url(re.compile(f"guidance_scale=3.5.*|seed={seed}"))
    page.reload()
    card = generate(page)
    expect(card.get_by_role("progressbar")).to_have_count(2)
    expect(card.get_by_role("status")).to_contain_text("Next in the queue")
    lease = hand.claim()
    assert lease.output_format == "webp"
    expect(card.get_by_role("status")).to_have_text("Starting")
    previews = [hand.report(lease, 1, 60), hand.report(lease, 1, 200, image=1)]
    shown = card.get_by_alt_text("Preview")
    expect(shown).to_have_count(2)
    assert [shown.nth(place).get_attribute("src") for place in range(2)] == previews
    hand.does(hand.worker.complete(lease)).raise_for_status()
    wanted = {
        "prompt": "a hand that waves",
        "negative_prompt": "text",
        "width": 128,
        "height": 128,
        "guidance_scale": 3.5,
        "sampler": "ddim",
        "num_images": 2,
        "seed": int(seed),
    }
    assert {name: lease.input[name] for name in wanted} == wanted
    expect(card.get_by_alt_text("a hand that waves")).to_have_count(2)
    card.get_by_role("button", name="Reuse these settings").click()
    expect(page.get_by_label("Format")).to_have_value("webp")
    page.get_by_label("Model", exact=True).select_option("clips")
    expect(page.get_by_label("Format")).to_have_value("")
    expect(page.get_by_label("Negative prompt")).to_have_count(0)
    card.get_by_role("button", name="Same seed, other prompt").click()
    expect(page.get_by_label("Model", exact=True)).to_have_value("able")
    expect(page.get_by_label("Prompt", exact=True)).to_be_focused()
    expect(page.get_by_label("Seed", exact=False).first).to_have_value(seed)


def test_images_are_edited_with_a_painted_mask(open_hand: Callable[..., Page], hand: Hand, axe: Axe) -> None:
    page = open_hand(prompt="a star")
    generate(page)
    hand.complete()
    newest(page).get_by_role("button", name="Edit image 1").click()
    expect(page.get_by_alt_text("Input image")).to_be_visible()
    page.get_by_role("button", name="Remove the image").click()
    files = [{"name": "in.png", "mimeType": "image/png", "buffer": png(64, 64)}]
    page.get_by_label("Drop, paste or choose an image").set_input_files(files)  # type: ignore[arg-type]
    page.get_by_role("button", name="Paint a mask").click()
    page.get_by_role("application", name="Mask: paint what is to change").click()
    axe(page)
    page.get_by_role("button", name="Use this mask").click()
    expect(page.get_by_alt_text("Mask: white is filled in")).to_be_visible()
    page.get_by_label("Strength").fill("0.5")
    axe(page)
    page.get_by_label("Prompt", exact=True).fill("a moon")
    generate(page)
    lease = hand.claim()
    assert (lease.input["strength"], lease.input["image"]["width"]) == (0.5, 64)
    mask = httpx.get(f"{hand.address}/v1/files/{lease.input['mask']['id']}/content", trust_env=False)
    with Image.open(BytesIO(mask.content)) as painted:
        low, high = painted.convert("L").getextrema()
    assert (low, high) == (0, 255), "black, and white where it was painted"
    hand.does(hand.worker.complete(lease))
    expect(newest(page).get_by_role("status")).to_have_text(DONE)


def test_a_mask_is_painted_large_undone_cleared_and_painted_by_keys(
    open_hand: Callable[..., Page], hand: Hand, screenshot: Screenshot
) -> None:
    page = open_hand(prompt="a star")
    files = [{"name": "in.png", "mimeType": "image/png", "buffer": png(128, 64)}]
    page.get_by_label("Drop, paste or choose an image").set_input_files(files)  # type: ignore[arg-type]
    page.get_by_role("button", name="Paint a mask").click()
    surface = page.get_by_role("application")
    box = surface.bounding_box()
    assert box is not None
    assert box["width"] > 1000, "as large as the window has room for"
    done, undo = (page.get_by_role("button", name=name) for name in ("Use this mask", "Undo"))
    expect(done).to_be_disabled()
    surface.press("Space")
    page.get_by_role("button", name="Clear").click()
    expect(done).to_be_disabled()
    page.keyboard.press("Control+z")
    expect(done).to_be_enabled()
    undo.click()
    for key in ("]", "Shift+ArrowRight", "Shift+ArrowRight"):
        surface.press(key)
    screenshot(page, "mask-editor")
    done.click()
    expect(page.get_by_alt_text("Mask: white is filled in")).to_be_visible()
    page.get_by_role("button", name="Change the mask").click()
    undo.click()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    generate(page)
    mask = hand.claim().input["mask"]["id"]
    content = httpx.get(f"{hand.address}/v1/files/{mask}/content", trust_env=False).content
    with Image.open(BytesIO(content)) as painted:
        assert painted.size == (128, 64)
        assert [painted.convert("L").getpixel(place) for place in ((10, 32), (66, 32))] == [0, 255]


def test_a_mask_is_painted_on_a_phone(browser: Browser, hand: Hand) -> None:
    """The layout of a phone grows with what is wider than its screen, even if nobody sees that."""
    phone = browser.new_context(
        base_url=hand.address, viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True
    )
    page = phone.new_page()
    page.goto("/?model=able&prompt=a+star")
    files = [{"name": "in.png", "mimeType": "image/png", "buffer": png(128, 64)}]
    page.get_by_label("Drop, paste or choose an image").set_input_files(files)  # type: ignore[arg-type]
    paint = page.get_by_role("button", name="Paint a mask")
    expect(paint).to_be_visible()
    assert page.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [390, 390]
    paint.tap()
    for button in page.get_by_role("dialog").get_by_role("button").all():
        expect(button).to_be_in_viewport(ratio=1)
    page.get_by_role("application").tap()
    page.get_by_role("button", name="Use this mask").tap()
    expect(page.get_by_alt_text("Mask: white is filled in")).to_be_visible()
    phone.close()


@pytest.mark.parametrize(("width", "height"), [(1280, 860), (1280, 720), (390, 844)])
def test_the_button_covers_no_field(open_hand: Callable[..., Page], width: int, height: int) -> None:
    page = open_hand(prompt="a star")
    page.set_viewport_size({"width": width, "height": height})
    page.get_by_text("More settings").click()
    button = page.get_by_role("button", name="Generate")
    fields = page.get_by_role("form").locator("input:not(.hidden-input), select, textarea, summary").all()
    assert len(fields) > 10
    for field in fields:
        field.scroll_into_view_if_needed()
        area, covering = field.bounding_box(), button.bounding_box()
        assert area is not None
        assert covering is not None
        is_above = area["y"] + area["height"] <= covering["y"]
        assert is_above or area["y"] >= covering["y"] + covering["height"], field.inner_html()
    button.scroll_into_view_if_needed()
    expect(button).to_be_in_viewport()


def test_photos_of_phones_are_turned_and_scaled_down(open_hand: Callable[..., Page], hand: Hand) -> None:
    page = open_hand(prompt="a star")
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = 6  # held upright
    photo = BytesIO()
    Image.new("RGB", (4000, 3000), (200, 30, 30)).save(photo, "JPEG", exif=exif)
    field = page.get_by_label("Drop, paste or choose an image")
    expect(field).to_have_attribute("accept", "image/*")
    heic = {"name": "IMG_1.HEIC", "mimeType": "", "buffer": b"\0\0\0\x18ftypheic"}
    field.set_input_files([heic])  # type: ignore[arg-type]
    expect(page.locator("#setting-image-error")).to_contain_text("cannot read HEIC photos. Choose a JPEG")
    image = {"name": "IMG_2.JPG", "mimeType": "image/jpeg", "buffer": photo.getvalue()}
    field.set_input_files([image])  # type: ignore[arg-type]
    expect(page.get_by_alt_text("Input image: IMG_2.JPG")).to_be_visible()
    generate(page)
    sent = hand.claim().input["image"]
    assert (sent["width"], sent["height"]) == (768, 1024)


def test_a_field_of_one_image_has_an_upload_of_its_own(
    open_hand: Callable[..., Page], hand: Hand, axe: Axe
) -> None:
    page = open_hand(prompt="a star")
    expect(page.get_by_label("Control scale")).to_have_count(0)
    field = page.get_by_role("region", name="Control image")
    files = [{"name": "edges.png", "mimeType": "image/png", "buffer": png(96, 64)}]
    for _ in range(2):
        field.get_by_label("Drop or choose an image").set_input_files(files)  # type: ignore[arg-type]
        expect(field.get_by_alt_text("Input image: edges.png")).to_be_visible()
        expect(page.get_by_role("radio", name="As image")).to_be_checked()
        field.get_by_role("button", name="Remove the image").click()
    field.get_by_label("Drop or choose an image").set_input_files(files)  # type: ignore[arg-type]
    page.get_by_text("More settings").click()
    page.get_by_label("Control scale").fill("0.5")
    axe(page)
    card = generate(page)
    lease = hand.claim()
    assert (lease.input["control_scale"], lease.input["control_image"]["width"]) == (0.5, 96)
    assert "image" not in lease.input
    hand.does(hand.worker.complete(lease))
    expect(card.get_by_role("status")).to_have_text(DONE)


def test_adapters_are_picked_weighed_and_told(open_hand: Callable[..., Page], hand: Hand, axe: Axe) -> None:
    page = open_hand(prompt="a star")
    picker = page.get_by_role("region", name="Adapters")
    for name in ("ink", "rough", "ink"):
        picker.get_by_label("Adapters").fill(name)
        picker.get_by_role("button", name="Add").click()
    picker.get_by_label("Weight of ink").fill("0.8")
    picker.get_by_role("button", name="Remove rough").click()
    page.wait_for_url(re.compile("adapters=ink%3A0.8"))
    axe(page)
    page.reload()
    card = generate(page)
    assert hand.complete().input["adapters"] == [{"name": "ink", "weight": 0.8}]
    expect(card.get_by_text("ink 0.8")).to_be_visible()
    picker.get_by_role("button", name="Remove ink").click()
    card.get_by_role("button", name="Reuse these settings").click()
    expect(picker.get_by_label("Weight of ink")).to_have_value("0.8")
    card.get_by_role("button", name="Code").click()
    expect(card.get_by_label("The request as curl")).to_contain_text('"name": "ink"')
    page.get_by_label("Model", exact=True).select_option("clips")
    expect(picker).to_have_count(0)


def test_controls_and_image_prompts_are_picked_weighed_and_used_again(
    open_hand: Callable[..., Page], hand: Hand, axe: Axe
) -> None:
    nets = replace(ABLE, controlnets=("canny", "union"), control_modes=(0, 3), max_image_prompts=2)
    worker = hand.register("guided", replace(nets, name="guided"))
    block_until(lambda: '"guided"' in httpx.get(f"{hand.address}/v1/models", trust_env=False).text)
    page = open_hand(prompt="a star", model="guided")
    controls, prompts = (page.get_by_role("region", name=name) for name in ("Controls", "Image prompts"))
    expect(page.get_by_role("region", name="Control image")).to_have_count(0)
    files = [{"name": "edges.png", "mimeType": "image/png", "buffer": png(64, 64)}]
    for count in (1, 2):
        controls.locator("input[type=file]").set_input_files(files)  # type: ignore[arg-type]
        expect(controls.get_by_role("group")).to_have_count(count)
    prompts.locator("input[type=file]").set_input_files(files)  # type: ignore[arg-type]
    prompts.get_by_label("How much they count").fill("0.6")
    second = controls.get_by_role("group", name="Control 2")
    expect(second.get_by_label("ControlNet")).to_have_value("union")
    second.get_by_label("Kind").fill("2")
    second.get_by_label("Weight").fill("0.5")
    second.get_by_label("To").fill("0.4")
    axe(page)
    card = generate(page)
    [lease] = hand.does(worker.claim(wait=HANG_SECONDS))
    first, other = lease.input["controls"]
    assert (first["name"], first.get("mode")) == ("canny", None)
    assert [other[name] for name in ("name", "weight", "end", "mode")] == ["union", 0.5, 0.4, 2]
    assert lease.input["image_prompt_scale"] == 0.6
    expect(card.get_by_text("union 0.5")).to_be_visible()
    hand.does(worker.complete(lease)).raise_for_status()
    controls.get_by_role("button", name="Remove the image").first.click()
    expect(controls.get_by_role("group")).to_have_count(1)
    card.get_by_role("button", name="Reuse these settings").click()
    expect(controls.get_by_role("group")).to_have_count(2)
    expect(second.get_by_label("Kind")).to_have_value("2")
    expect(prompts.get_by_role("img")).to_have_count(1)


def test_the_last_frame_is_for_clips(open_hand: Callable[..., Page]) -> None:
    page = open_hand(prompt="a ball falls", model="clips")
    expect(page.get_by_role("region", name="First frame")).to_be_visible()
    expect(page.get_by_role("region", name="Last frame")).to_be_visible()
    page.get_by_role("radio", name="An image").check(force=True)
    expect(page.get_by_role("region", name="First frame")).to_be_visible()
    expect(page.get_by_role("region", name="Last frame")).to_have_count(0)


def test_clips_tell_their_frames_and_play(open_hand: Callable[..., Page], hand: Hand) -> None:
    page = open_hand(prompt="a ball falls", model="clips")
    page.get_by_role("radio", name="1.1 s").check(force=True)
    card = generate(page)
    lease = hand.claim()
    assert (lease.kind, lease.live) == ("video.generate", True)
    report = {"phase": "decode", "step": 4, "total": 4, "frames": 8, "num_frames": 17}
    hand.does(hand.worker._post(lease, "events", report))
    expect(card.get_by_role("status")).to_have_text("Decoded 8 of 17 frames")
    hand.does(complete_clip(hand.worker, lease))
    expect(card.locator("video")).to_have_attribute("poster", re.compile("poster"))


def test_a_model_that_is_being_loaded_tells_how_far_it_is(open_page: OpenPage, hand: Hand) -> None:
    loading = {"phase": "weights", "bytes_read": 3_000_000, "bytes_total": 10_000_000}
    hand.does(hand.worker.beat("initializing", loading=loading))
    block_until(lambda: hand.model("able")["status"] == "loading")  # what is told of models is up to 1 s old
    page = open_page(hand.address)
    page.goto("/")
    state = page.get_by_role("form").get_by_role("status")
    expect(state).to_contain_text("weights 3.0 of 10.0 MB, 30%")
    page.get_by_role("button", name="Generate").click()
    expect(newest(page).get_by_role("status")).to_contain_text("Waiting: able is being loaded")
    hand.does(hand.worker.beat("ready"))
    expect(state).to_have_text("Ready")
    expect(newest(page).get_by_role("status")).to_contain_text("Next in the queue")


HAVE = {"name": "sketch", "license": "MIT", "makes": "images", "num_bytes": 2_000_000_000}
MODELS = [
    {**HAVE, "name": "able", "is_here": True},
    HAVE,
    {**HAVE, "name": "oil", "license": "RAIL", "needs_consent": True},
    {**HAVE, "name": "mural", "num_bytes": 40_000_000_000},
]


def report_orders(hand: Hand, progress: dict[str, object] | None = None) -> dict[str, str] | None:
    """Have the worker tell what it can get and how far it is, and return the order that it is told."""
    orders = {"models": MODELS, "room_bytes": 10_000_000_000, "progress": progress}
    told = hand.does(hand.worker.beat("ready", resident_models=["able"], orders=orders))
    order: dict[str, str] | None = told.raise_for_status().json()["order"]
    return order


def test_an_operator_has_a_worker_get_a_model_from_the_menu(
    open_hand: Callable[..., Page], hand: Hand, axe: Axe, screenshot: Screenshot
) -> None:
    report = partial(report_orders, hand)
    page = open_hand(prompt="a star")
    page.get_by_role("button", name="More models…").click()
    menu = page.get_by_role("dialog", name="Models")
    expect(menu.get_by_text("No worker takes orders of models")).to_be_visible()
    assert report() is None
    expect(menu.get_by_text("images · 2 GB · MIT · in memory")).to_be_visible()
    expect(menu.get_by_text("does not fit here: 40 GB, and models here may have 10 GB")).to_be_visible()
    expect(menu.get_by_role("button", name="Fetch and load mural")).to_be_disabled()
    axe(page)
    menu.get_by_role("button", name="Fetch and load oil").click()
    expect(menu.get_by_text("under the RAIL, which restricts")).to_be_visible()
    menu.get_by_role("button", name="Leave it").click()
    assert report() is None
    menu.get_by_role("button", name="Fetch and load sketch").click()
    block_until(lambda: report() is not None)
    order = report()
    assert order is not None
    fetching = {**order, "state": "fetching", "bytes_read": 500_000_000, "bytes_total": 2_000_000_000}
    report(fetching)
    bar = menu.get_by_role("progressbar", name="Progress of the order")
    expect(bar).to_have_js_property("value", 0.25)
    expect(menu.get_by_role("button", name="Fetch and load oil")).to_be_disabled()
    screenshot(page, "models-menu")
    menu.get_by_role("button", name="Cancel").click()
    block_until(lambda: report(fetching) is None)
    report({**order, "state": "failed", "reason": f"{'x' * 600}; free the disk"})
    expect(menu.get_by_text("x; free the disk")).to_be_visible()
    assert menu.locator(".models").evaluate("list => list.scrollWidth <= list.clientWidth"), "it wraps"
    menu.get_by_role("button", name="Use able").click()
    expect(menu).to_have_count(0)


def test_an_order_shows_before_the_worker_has_heard_of_it_and_a_refusal_only_until_it_is_further(
    open_hand: Callable[..., Page], hand: Hand
) -> None:
    report_orders(hand)
    page = open_hand(prompt="a star")
    page.get_by_role("button", name="More models…").click()
    menu = page.get_by_role("dialog", name="Models")
    menu.get_by_role("button", name="Fetch and load sketch").click()
    expect(menu.get_by_role("status")).to_contain_text("Ordered sketch")
    expect(menu.get_by_role("button", name="Fetch and load oil")).to_be_disabled()
    menu.get_by_role("button", name="Cancel").click()
    expect(menu.get_by_text("Ordered sketch")).to_have_count(0)
    assert report_orders(hand) is None
    other = ModelOrder(id="order_of_another_operator", model="sketch")
    hand.does(hand.store.leases.order_model(hand.worker.id, other))
    menu.get_by_role("button", name="Fetch and load sketch").click()
    expect(menu.get_by_role("alert")).to_contain_text("is at sketch")
    report_orders(hand, {"id": other.id, "model": "sketch", "state": "loaded"})
    expect(menu.get_by_text("sketch is loaded")).to_be_visible()
    expect(menu.get_by_role("alert")).to_have_count(0)
    expect(menu.get_by_text("loaded again after a restart")).to_be_visible()
    menu.get_by_role("button", name="Do not load sketch again").click()
    expect(menu.get_by_text("loaded again after a restart")).to_have_count(0)


def test_on_a_phone_the_result_comes_into_view(
    open_hand: Callable[..., Page], hand: Hand, screenshot: Screenshot
) -> None:
    page = open_hand(phone=True, prompt="a red circle on a white background and a blue star")
    card = generate(page)
    expect(card.get_by_role("button", name="Cancel")).to_be_in_viewport()
    hand.complete()
    expect(card.get_by_role("status")).to_have_text(DONE)
    assert_fits(page)
    screenshot(page, "playground-phone")
