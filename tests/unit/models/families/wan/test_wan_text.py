"""Prompts are cleaned and encoded as the reference does it."""

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import WanPipeline
from diffusers.pipelines.wan.pipeline_wan import prompt_clean

from diffuserve.domain.requests.params import GenerationParams
from diffuserve.models.families.wan.text import WanTextEncoder, clean
from diffuserve.models.folders.folder import ModelFolder
from diffuserve.models.registry import read_spec
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.testing.wan_checkpoints import write_wan_checkpoint

CPU = torch.device("cpu")
ODD = (
    "a  red\tcircle \n moves ",
    "fish &amp;amp; chips &lt;b&gt;",
    "“smart” quotes … and a dash – here",
    "broken: Ã©tÃ©, âœ”",
    "full width ＡＢＣ，ligature ﬁ",
    "line\u2028separator\u00a0and\u3000spaces\u0085next",
    "control\x1ccharacters\x00and\x7f",
    "&nbsp;&#8203;",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_wan_checkpoint(tmp_path_factory.mktemp("model") / "wan", seed=3)


@pytest.fixture(scope="module")
def encoder(folder: Path) -> WanTextEncoder:
    return WanTextEncoder(ModelFolder(folder), read_spec(str(folder)), LoadPlan(CPU, torch.float32))


def ask(prompt: str, **values: Any) -> GenerationParams:
    defaults: dict[str, Any] = {"max_sequence_length": 512, "guidance_scale": 5.0}
    return GenerationParams(prompt=prompt, **defaults | values)


@pytest.mark.parametrize("prompt", ODD)
def test_prompts_are_cleaned_as_the_reference_does_it(prompt: str) -> None:
    assert clean(prompt) == prompt_clean(prompt)


def test_states_equal_the_references_without_its_padding(folder: Path, encoder: WanTextEncoder) -> None:
    reference = WanPipeline.from_pretrained(
        folder, transformer=None, vae=None, local_files_only=True, trust_remote_code=False
    )
    requests = [ask(ODD[0], negative_prompt="blurry"), ask("ring " * 60, max_sequence_length=16), ask("x")]
    with torch.inference_mode():
        encoded = encoder.encode(requests, one_by_one=False)
        for wanted, ours in zip(requests, encoded, strict=True):
            texts = (wanted.prompt, wanted.negative_prompt or "")
            for text, states in zip(texts, ours.texts, strict=True):
                theirs = reference._get_t5_prompt_embeds(
                    text, max_sequence_length=wanted.max_sequence_length, device=CPU
                )[0]
                torch.testing.assert_close(states, theirs[: len(states)], atol=1e-5, rtol=1e-4)
                assert not theirs[len(states) :].any()


def test_a_text_that_is_cut_is_warned_of_by_name(encoder: WanTextEncoder) -> None:
    request = ask("ring " * 60, negative_prompt="star " * 40, max_sequence_length=16)
    with torch.inference_mode():
        [encoded] = encoder.encode([request], one_by_one=False)
    first, second = encoded.warnings
    assert first.startswith("the prompt has ")
    assert first.endswith("the model reads 16; the rest was cut off")
    assert second.startswith("the negative prompt has ")


def test_an_unguided_request_has_one_text_and_none_is_the_empty_one(encoder: WanTextEncoder) -> None:
    assert len(encoder.key(ask("x", guidance_scale=1.0, negative_prompt="y"))) == 1
    assert encoder.key(ask("x")) == encoder.key(ask("x", negative_prompt=""))
    assert encoder.key(ask("x")) != encoder.key(ask("x", negative_prompt="y"))


def test_states_do_not_depend_on_the_texts_beside(encoder: WanTextEncoder) -> None:
    requests = [ask("x"), ask("ring " * 60)]
    with torch.inference_mode():
        together = encoder.encode(requests, one_by_one=False)
        alone = encoder.encode(requests[:1], one_by_one=False)
    torch.testing.assert_close(together[0].prompt, alone[0].prompt, atol=1e-5, rtol=1e-4)


def test_a_folder_that_was_trained_on_lower_case_reads_prompts_so(tmp_path: Path) -> None:
    folder = write_wan_checkpoint(tmp_path / "wan", seed=3)
    (folder / "diffuserve.json").write_text('{"lowercase_prompt": true}')
    encoder = WanTextEncoder(ModelFolder(folder), read_spec(str(folder)), LoadPlan(CPU, torch.float32))
    assert encoder.key(ask("A Red Circle", negative_prompt="Blur")) == encoder.key(
        ask("a red circle", negative_prompt="blur")
    )
