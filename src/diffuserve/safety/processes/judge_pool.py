"""Processes that judge prompts, so that a server's event loop stays free.

Folding and matching are plain Python, which holds the interpreter's lock: threads would not do.
"""

import asyncio
import json
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from multiprocessing.connection import Connection

from diffuserve.domain.codec import from_json
from diffuserve.domain.errors import ModerationUnavailable
from diffuserve.domain.safety import Verdict
from diffuserve.safety.base import TextClassifier
from diffuserve.safety.policies.policy import Policy
from diffuserve.safety.processes.fair_slots import FairSlots
from diffuserve.safety.processes.piped_process import PipedProcess
from diffuserve.safety.prompt import PolicyFilter
from diffuserve.telemetry.log_config import LogConfig
from diffuserve.telemetry.logs import configure_logs

log = logging.getLogger(__name__)

_MAX_TRIES = 2
_LONGEST_SECONDS = 60.0
"""Seconds after which a process counts as stuck; most calls take a tenth of a second, the first one two."""


class JudgePool:
    """Judges prompts in `num_processes` processes. Each starts when it is first needed, and again if it dies.

    Tenants have turns by the seconds that their calls take. `policy` and `classifier` are sent to the
    processes, so that one which starts again judges as before, whatever has become of their files.
    """

    def __init__(
        self,
        policy: Policy,
        classifier: TextClassifier | None,
        num_processes: int,
        logs: LogConfig = LogConfig(),
    ) -> None:
        self._arguments = (policy, classifier, logs)
        self._turns = FairSlots(num_processes)
        self._threads = ThreadPoolExecutor(num_processes, "judges")
        self._idle: list[_Judge] = []

    async def check(self, prompts: Sequence[str], tenant_id: str, line: str = "") -> list[Verdict]:
        """Return the verdict on each prompt. Raise `ModerationUnavailable` if the process dies repeatedly.

        Calls of a tenant in different lines wait for each other in turn, as calls of different tenants do.
        """
        loop = asyncio.get_running_loop()
        async with self._turns.turn(f"{tenant_id}/{line}"):
            return await loop.run_in_executor(self._threads, self._check, tuple(prompts), tenant_id)

    async def close(self) -> None:
        """End the processes."""
        await asyncio.to_thread(self._threads.shutdown)
        for judge in self._idle:
            judge.end()

    def _check(self, prompts: tuple[str, ...], tenant_id: str) -> list[Verdict]:
        for _ in range(_MAX_TRIES):
            judge = self._idle.pop() if self._idle else _Judge(*self._arguments)
            try:
                verdicts = judge.check(prompts, tenant_id)
            except (EOFError, OSError) as error:
                log.warning("a process that judges prompts is lost (%s)", type(error).__name__)
                judge.end()
            else:
                self._idle.append(judge)
                return verdicts
        raise ModerationUnavailable("the process that judges prompts died; try again later", retry_after=1.0)


class _Judge(PipedProcess):
    """A process with a filter of its own, which ends with the pipe to it. What comes back is JSON."""

    def __init__(self, policy: Policy, classifier: TextClassifier | None, logs: LogConfig) -> None:
        super().__init__("diffuserve-judge", _judge_forever, policy, classifier, logs)

    def check(self, prompts: tuple[str, ...], tenant_id: str) -> list[Verdict]:
        """Return the verdict on each prompt. Raise `EOFError` or `OSError` if it is dead or stuck."""
        self._pipe.send_bytes(json.dumps([prompts, tenant_id]).encode())
        if not self._pipe.poll(_LONGEST_SECONDS):
            raise TimeoutError(f"no verdict within {_LONGEST_SECONDS:g} s")
        return list(from_json(tuple[Verdict, ...], self._pipe.recv_bytes()))


def _judge_forever(
    pipe: Connection, policy: Policy, classifier: TextClassifier | None, logs: LogConfig
) -> None:
    """Judge what comes through the pipe until it is closed."""
    configure_logs(logs)
    prompt_filter = PolicyFilter(policy, classifier)
    with asyncio.Runner() as runner:
        while True:
            try:
                prompts, tenant_id = json.loads(pipe.recv_bytes())
            except EOFError:
                return
            verdicts = runner.run(prompt_filter.check_all(prompts, tenant_id))
            pipe.send_bytes(json.dumps([asdict(verdict) for verdict in verdicts]).encode())
