"""The engine's side of the pipe."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from diffuserve.domain.params import GenerationParams
from diffuserve.engine.config import EngineConfig
from diffuserve.engine.engine import Engine
from diffuserve.testing.fake_pipeline import FakePipeline
from diffuserve.worker.agent_link import AgentLink
from diffuserve.worker.engine_host import EngineHost
from diffuserve.worker.messages import Add, Message


@dataclass
class _Link:
    """Stands for the pipe: keeps what is said."""

    said: list[Message] = field(default_factory=list)

    def send(self, message: Message) -> None:
        self.said.append(message)


def test_urgent_jobs_step_first_inside_the_engine_too(fake: FakePipeline, tmp_path: Path) -> None:
    order: list[str] = []

    def note(requests: list[GenerationParams]) -> None:
        order.extend(one.prompt for one in requests if one.prompt not in order)

    fake.on_denoise = cast(Any, note)
    with Engine(fake, EngineConfig(token_budget=1)) as engine:  # one request a step
        host = EngineHost(engine, cast(AgentLink, _Link()))
        for number, (prompt, priority) in enumerate([("batch", -2), ("standard", -1), ("interactive", 0)]):
            params = {"prompt": prompt, "width": 32, "height": 32, "seed": number}
            host.handle(Add(attempt=prompt, input=params, folder=str(tmp_path), priority=priority))
        for _ in range(100):
            if len(order) == 3:
                break
            engine.step()
    assert order == ["interactive", "standard", "batch"]
