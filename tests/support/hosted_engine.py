"""An engine host with a link that keeps its messages, and a filter that does what a test says."""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from diffuserve.domain.safety import Action, FilterInfo, Finding, Verdict
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.engine_process.agent_link import AgentLink
from diffuserve.engine_process.engine_host import EngineHost
from diffuserve.engine_process.output.image_output import ImageOutput
from diffuserve.protocol.messages import AddJob, JobDenoised, JobFailed, JobFinished, Message, StopEngine
from diffuserve.testing.fake_pipeline import FakePipeline
from support.waiting import HANG_SECONDS

M = TypeVar("M", bound=Message)
NO_FILTER = ImageOutput(None, "fake")


@dataclass
class KeptLink:
    """Stands for the connection to the agent: keeps the messages that are sent."""

    sent: list[Message] = field(default_factory=list)
    sends: list[tuple[Message, ...]] = field(default_factory=list)
    news: threading.Condition = field(default_factory=threading.Condition)

    def send(self, *messages: Message) -> None:
        with self.news:
            self.sent += messages
            self.sends.append(messages)
            self.news.notify_all()

    def all(self, kind: type[M]) -> list[M]:
        return [message for message in self.sent if isinstance(message, kind)]

    def wait_for(self, check: Callable[[], bool]) -> None:
        with self.news:
            assert self.news.wait_for(check, HANG_SECONDS), self.sent


@dataclass
class ScriptedFilter:
    """Judges images by `find`, and notes the threads that called it."""

    find: Callable[[Image.Image], Action]
    info: FilterInfo = field(default_factory=lambda: FilterInfo("test", "1", {"nsfw": 0.5}))
    threads: set[str] = field(default_factory=set)

    def check(self, image: Image.Image) -> Verdict:
        self.threads.add(threading.current_thread().name)
        action = self.find(image)
        return Verdict(() if action is Action.ALLOW else (Finding("nsfw", action, "test", 0.9),))


@dataclass
class ScriptedJudge:
    """Judges every sound alike, and notes their rates."""

    action: Action
    info: FilterInfo = field(default_factory=lambda: FilterInfo("ears", "1", {"speech": 0.5}))
    rates: list[int] = field(default_factory=list)

    def check(self, samples: NDArray[np.float32], sample_rate: int) -> Verdict:
        assert samples.dtype == np.float32
        self.rates.append(sample_rate)
        found = Finding("speech", self.action, "ears", 0.9)
        return Verdict(() if self.action is Action.ALLOW else (found,))


def serve(
    fake: FakePipeline, images: ImageOutput, jobs: Sequence[AddJob], link: KeptLink | None = None
) -> KeptLink:
    """Run a host until every job is finished, denoised or failed."""
    link, ends = link or KeptLink(), (JobFinished, JobDenoised, JobFailed)
    with Engine(fake, EngineConfig(token_budget=10_000)) as engine:
        host = EngineHost(engine, cast(AgentLink, link), images)
        running = threading.Thread(target=host.run)
        running.start()
        for job in jobs:
            host.handle(job)
        link.wait_for(lambda: sum(len(link.all(end)) for end in ends) == len(jobs))
        host.handle(StopEngine())
        running.join(HANG_SECONDS)
    return link


def job(prompt: str, folder: Path, **values: Any) -> AddJob:
    params = {"prompt": prompt, "width": 32, "height": 32, "seed": 1, **values.pop("params", {})}
    (folder / prompt).mkdir(exist_ok=True)
    return AddJob(attempt=prompt, input=params, folder=str(folder / prompt), **values)
