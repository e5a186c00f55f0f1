"""Which denoising steps an engine tells its agent of."""

from typing import cast

from diffuserve.engine.outputs import StepOutput
from diffuserve.engine_process.agent_link import AgentLink
from diffuserve.engine_process.traced_steps import TracedSteps
from diffuserve.protocol.messages import AddJob, StepTaken
from support.hosted_engine import KeptLink

JOBS = {
    name: AddJob(attempt=name, input={}, folder="", is_traced=is_traced)
    for name, is_traced in [("traced", True), ("other", False)]
}


def told(*steps: list[StepOutput]) -> list[StepTaken]:
    """Return what is told of these steps."""
    link = KeptLink()
    traced = TracedSteps(cast(AgentLink, link), JOBS.__getitem__)
    for number, outputs in enumerate(steps):
        traced.tell(outputs, float(number), 0.25)
    return link.all(StepTaken)


def taken(*names: str) -> list[StepOutput]:
    return [StepOutput(name, step=1, num_steps=20) for name in names]


def test_one_of_eight_steps_with_traced_jobs_is_told_with_all_jobs_of_it() -> None:
    steps = told(*[taken("traced", "other")] * 17)
    assert [step.began_at for step in steps] == [0.0, 8.0, 16.0]
    assert {step.attempts for step in steps} == {("traced", "other")}


def test_steps_without_traced_jobs_are_neither_told_nor_counted() -> None:
    steps = told(*[taken("other")] * 3, taken("traced"), *[taken("other")] * 9, taken("traced"))
    assert [step.began_at for step in steps] == [3.0]


def test_what_is_no_denoising_step_is_not_told() -> None:
    assert told([StepOutput("traced", step=0, num_steps=20)]) == []
    assert told([StepOutput("traced", step=20, num_steps=20, num_decoded=1)]) == []
