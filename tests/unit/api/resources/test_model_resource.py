"""The resource of a model tells its abilities, defaults and example."""

from dataclasses import fields, replace
from typing import Any

from diffuserve.api.resources.model_resources import model_resource
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.requests.request_fields import Topic
from diffuserve.domain.resources.model import ModelResource, ModelSafetyResource
from diffuserve.domain.workers.readiness import ModelStatus
from diffuserve.domain.workers.worker import Worker, WorkerReport, WorkerState
from support.hand_worker import HAND_SPEC


def test_a_model_tells_each_ability_and_default_once() -> None:
    told = model_resource(HAND_SPEC, ModelStatus.READY, ModelSafetyResource(prompt=None, image=()))
    shown = [*told.defaults, *told.limits]
    internal = {
        "name",
        "family",
        "run_by",
        "guidance_passes",
        "pixels_per_token",
        "has_joint_attention",
        "strength_rounds_up",
        "encodes_clip",
        "reference_text_tokens",
        "learned_min_size",
        "learned_max_size",
        "example_prompt",
        "example_prompts",
        "control_work",
        "image_prompt_tokens",
        "averages_image_prompts",
        "replaced_scheduler",
    }
    of_all = {
        "max_prompt_characters",
        "max_num_inference_steps",
        "max_guidance_scale",
        "max_fps",
        "max_seed",
        "max_previews",
    }
    assert len(shown) == len(set(shown))
    assert set(shown) == {field.name for field in fields(ModelSpec)} - internal | of_all


def test_a_model_that_a_library_runs_tells_so_and_offers_no_previews_that_it_has_not() -> None:
    def told(spec: ModelSpec) -> ModelResource:
        return model_resource(spec, ModelStatus.READY, ModelSafetyResource(prompt=None, image=()))

    foreign = told(replace(HAND_SPEC, run_by="diffusers", has_previews=False, shares_passes=False))
    assert (told(HAND_SPEC).run_by, foreign.run_by) == ("diffuserve", "diffusers")
    assert (told(HAND_SPEC).limits["max_previews"] > 0, foreign.limits["max_previews"]) == (True, 0)
    assert not foreign.limits["shares_passes"]


def test_a_model_tells_its_example_if_it_has_one() -> None:
    def examples(spec: ModelSpec) -> tuple[str | None, tuple[str, ...]]:
        safety = ModelSafetyResource(prompt=None, image=())
        resource = model_resource(spec, ModelStatus.READY, safety)
        return resource.example_prompt, resource.example_prompts

    assert examples(HAND_SPEC) == (None, ())
    assert examples(replace(HAND_SPEC, example_prompt="a hand")) == ("a hand", ("a hand",))
    several = replace(HAND_SPEC, example_prompt="a hand", example_prompts=("a hand", "a fist"))
    assert examples(several) == ("a hand", ("a hand", "a fist"))


def test_a_model_tells_which_workers_have_it_in_memory_and_what_a_load_takes() -> None:
    def told(*workers: Worker, load_seconds: float = 0.0) -> ModelResource:
        safety = ModelSafetyResource(prompt=None, image=())
        return model_resource(
            HAND_SPEC, ModelStatus.READY, safety, workers=workers, load_seconds=load_seconds
        )

    resident = worker(WorkerReport(state=WorkerState.READY, resident_models=(HAND_SPEC.name,)))
    cold = worker(WorkerReport(state=WorkerState.READY, resident_models=("another",)))
    gone, leaving = replace(resident, state=WorkerState.LOST), replace(resident, is_draining=True)
    shown = told(resident, cold, gone, leaving, load_seconds=2.5)
    assert (shown.num_workers, shown.num_resident, shown.load_seconds) == (2, 1, 2.5)
    assert told().load_seconds is None


def worker(report: WorkerReport) -> Worker:
    return Worker(
        id="worker_1",
        name="",
        state=report.state,
        labels={},
        models=(HAND_SPEC.name, "another"),
        report=report,
        registered_at=0.0,
        heartbeat_at=0.0,
    )


def test_a_model_without_a_choice_has_no_default_for_it() -> None:
    def defaults(**abilities: Any) -> list[Any]:
        spec = replace(HAND_SPEC, **abilities)
        told = model_resource(spec, ModelStatus.READY, ModelSafetyResource(prompt=None, image=()))
        return [told.defaults[name] for name in ("sampler", "strength", "mask_strength", "control_scale")]

    assert defaults() == [None, None, None, None]
    assert defaults(sampler="euler", has_strength=True) == ["euler", 0.8, None, None]
    assert defaults(has_strength=True, has_mask=True, strength=0.6) == [None, 0.6, 1.0, None]
    assert defaults(has_control_image=True) == [None, None, None, 1.0]


def test_a_model_tells_the_fields_that_mean_something_to_it() -> None:
    def names(**abilities: Any) -> set[str]:
        spec = replace(HAND_SPEC, **abilities)
        told = model_resource(spec, ModelStatus.READY, ModelSafetyResource(prompt=None, image=()))
        return {field.name for field in told.fields}

    of_all = names()
    assert of_all >= {"prompt", "width", "num_inference_steps", "seed", "num_images"}
    assert names(has_guidance=True, has_negative_prompt=True) - of_all == {
        "guidance_scale",
        "negative_prompt",
    }
    assert names(max_frames=81) - of_all == {"num_frames", "seconds", "fps"}
    assert names(max_input_images=1, has_strength=True) - of_all == {"image", "strength"}
    assert names(has_control_image=True) - of_all == {"control_image", "control_scale"}
    assert names(samplers=("lcm",)) == of_all, "which is no choice"
    assert names(samplers=("euler",)) - of_all == {"timestep_spacing"}
    assert names(samplers=("euler", "unipc")) - of_all == {"sampler", "timestep_spacing"}


def test_strength_is_beside_a_mask_where_images_are_references() -> None:
    def topic(**abilities: Any) -> Topic | None:
        spec = replace(HAND_SPEC, max_input_images=2, has_mask=True, **abilities)
        told = model_resource(spec, ModelStatus.READY, ModelSafetyResource(prompt=None, image=()))
        return next(field.topic for field in told.fields if field.name == "strength")

    assert (topic(has_strength=True), topic(masks_references=True)) == (Topic.IMAGE, Topic.MASK)
