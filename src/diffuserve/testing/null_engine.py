"""An engine process that generates nothing, for tests and measurements of everything around it.

It implements the agent's protocol without torch. Prompts inject faults: `crash` ends the process, `hang`
stops its progress, `fail` and `bad` fail the job with and without a retry.
"""

import argparse
import base64
import os
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from diffuserve.domain.models.cost import CostFit
from diffuserve.domain.models.spec import ModelSpec
from diffuserve.domain.workers.worker import LATENTS_ID, LATENTS_NAME, LeaseEnd
from diffuserve.engine_process.agent_link import AgentLink, end_with_agent_alone
from diffuserve.engine_process.model.stored_model import logged
from diffuserve.engine_process.start.main import fetch_model, join_peers
from diffuserve.protocol.config import EngineProcessConfig
from diffuserve.protocol.messages import (
    AbortJob,
    AddJob,
    CheckpointReady,
    EngineHeartbeat,
    EngineReady,
    FinishedFile,
    JobDenoised,
    JobFailed,
    JobFinished,
    ModelAnnounced,
    PreemptJob,
    StepProgress,
    StepTaken,
    StopEngine,
    ToEngine,
)

NULL_SPEC = ModelSpec(
    name="null",
    family="null",
    width=64,
    height=64,
    num_inference_steps=4,
    max_sequence_length=16,
    longest_sequence_length=64,
)
NULL_FIT = CostFit((0.0, 0.0), (0.001, 0.0, 0.0, 0.0), (0.0, 0.0))
_TOKEN_BUDGET = 4096
_PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@dataclass
class NullEngine:
    """Runs all jobs at once, each for `seconds`.

    `ledger` is a file that gets a line for each time that a job was run. Latents are pretended.
    """

    link: AgentLink
    seconds: float = 0.0
    writes_files: bool = False
    ledger: Path | None = None
    _timers: dict[str, threading.Timer] = field(default_factory=dict)
    _num_moves: int = 0
    _is_hanging: bool = False
    _stopped: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        self._stopped.wait()

    def handle(self, message: ToEngine) -> None:
        if isinstance(message, AddJob):
            self._add(message)
        elif isinstance(message, AbortJob):
            self._abort(message.attempt)
        elif isinstance(message, PreemptJob):
            self.link.send(CheckpointReady(attempt=message.attempt, is_last=True))
            self._abort(message.attempt)
        elif isinstance(message, StopEngine):
            self._stopped.set()

    def heartbeat(self) -> EngineHeartbeat:
        return EngineHeartbeat(num_moves=self._num_moves, num_unfinished=len(self._timers), fit=NULL_FIT)

    def _add(self, job: AddJob) -> None:
        prompt = str(job.input.get("prompt", ""))
        if prompt == "crash":
            self.link.crash_record.note([job.attempt])
            os._exit(11)
        if prompt == "hang":
            self._is_hanging = True
        if prompt in ("fail", "bad"):
            failed = JobFailed(
                attempt=job.attempt, code=prompt, message="as asked", retryable=prompt == "fail"
            )
            self.link.send(failed)
        elif self.seconds > 0 or self._is_hanging:
            self._start_timer(job)
        else:
            self._finish(job)

    def _start_timer(self, job: AddJob) -> None:
        timer = threading.Timer(self.seconds, self._finish, (job,))
        timer.daemon = True
        self._timers[job.attempt] = timer
        timer.start()
        self.link.send(StepProgress(attempt=job.attempt, phase="denoise", step=1, total=4))

    def _abort(self, attempt: str) -> None:
        timer = self._timers.pop(attempt, None)
        if timer is not None:
            timer.cancel()
            self.link.send(JobFailed(attempt=attempt, code="aborted", message="aborted"))

    def _finish(self, job: AddJob) -> None:
        if self._is_hanging:
            return
        if self.seconds > 0 and self._timers.pop(job.attempt, None) is None:
            return
        self._num_moves += 1
        self._note(job)
        if job.until == LeaseEnd.LATENTS:
            self._hand_over(job)
            return
        self._tell_step(job)
        files = (_write(job),) if self.writes_files else ()
        self.link.send(
            JobFinished(
                attempt=job.attempt,
                files=files,
                input=job.input,
                timings={"denoise_seconds": self.seconds, "total_seconds": self.seconds},
                actual_seconds=self.seconds,
            )
        )

    def _tell_step(self, job: AddJob) -> None:
        """Report a traced job's step, shared with all current jobs."""
        if job.is_traced:
            attempts, began_at = (job.attempt, *self._timers), time.time() - self.seconds
            self.link.send(StepTaken(attempts=attempts, began_at=began_at, seconds=self.seconds))

    def _note(self, job: AddJob) -> None:
        """Write a line into the ledger: the attempt, and its phase if it is only one of them."""
        phases = {(True, False): " denoise", (False, True): " decode"}
        phase = phases.get((job.until == LeaseEnd.LATENTS, LATENTS_ID in job.files), "")
        if self.ledger is not None:
            with self.ledger.open("a", encoding="utf-8") as file:
                file.write(f"{job.attempt}{phase}\n")

    def _hand_over(self, job: AddJob) -> None:
        path = Path(job.folder) / LATENTS_NAME
        path.write_bytes(b"pretended latents")
        denoised = JobDenoised(
            attempt=job.attempt, path=str(path), weights="0" * 64, actual_seconds=self.seconds
        )
        self.link.send(denoised)


def _write(job: AddJob) -> FinishedFile:
    path = Path(job.folder) / "0.png"
    path.write_bytes(_PNG)
    return FinishedFile(path=str(path), name="0.png", content_type="image/png", width=1, height=1)


def main() -> None:
    parser = argparse.ArgumentParser(description="An engine process that generates nothing.")
    parser.add_argument("--socket", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--files", type=int, default=0)
    parser.add_argument("--ledger", type=Path)
    parser.add_argument("--load-seconds", type=float, default=0.0)
    parser.add_argument("--refuse")
    parser.add_argument("--stands-for", default=NULL_SPEC.name, help="name of the model that it announces")
    parser.add_argument("--fetch", help="JSON of EngineProcessConfig, whose model is fetched")
    args, _ = parser.parse_known_args()  # options of the real engine process are ignored
    end_with_agent_alone()
    link = AgentLink(args.socket)
    config = None if args.fetch is None else EngineProcessConfig.from_json(args.fetch)
    engine = NullEngine(link, args.seconds, bool(args.files), args.ledger)
    peers = None if config is None else join_peers(config, link)
    link.listen(engine.handle, None if peers is None else peers.told)
    link.send_every(1.0, engine.heartbeat)
    link.send(ModelAnnounced(spec=replace(NULL_SPEC, name=args.stands_for), fit=NULL_FIT))
    if config is not None:
        fetch_model(config, logged, peers)
    time.sleep(args.load_seconds)
    if args.refuse:
        link.refuse(args.refuse)
    link.send(EngineReady(token_budget=_TOKEN_BUDGET))
    engine.run()


if __name__ == "__main__":
    main()
