"""A process of simulated workers: real requests of a worker over HTTP, and no work.

    python -m benchmarks.control.fleet_workers --ports 8000,8001 --workers 25 --first 0 --seconds 2

Each worker holds one job at a time, for `--seconds` in the mean and between half and one and a half times as
long: workers of equal jobs would fall into step, as they wait for the same commits. It reports its progress
every two seconds as agents do when nobody watches, sends heartbeats, and waits for commands in a long poll.
The process ends with the one that started it.
"""

import argparse
import asyncio
import itertools
import random
from typing import Any

from benchmarks.control.jobs import REGISTRATION
from benchmarks.control.load import Answer, Connection
from diffuserve.engine_process.agent_link import die_with_parent

_POLL_SECONDS = 20.0
_REPORT_SECONDS = 2.0
_STEPS = 4
_RESULT: dict[str, Any] = {"artifacts": [], "timings": {"denoise_s": 1.0}}


def main() -> None:
    arguments = parse_arguments()
    ports = [int(port) for port in arguments.ports.split(",")]
    die_with_parent()
    asyncio.run(run_workers(ports, arguments.first, arguments.workers, arguments.seconds))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--ports", required=True, help="control planes, which the workers take in turn")
    parser.add_argument("--workers", type=int, required=True)
    parser.add_argument("--first", type=int, default=0, help="number of the first worker")
    parser.add_argument("--seconds", type=float, required=True, help="that a job takes")
    return parser.parse_args()


async def run_workers(ports: list[int], first: int, count: int, seconds: float) -> None:
    """Run workers until the first of them fails; print a line when all are registered."""
    workers = [
        SimulatedWorker(ports[number % len(ports)], number, seconds) for number in range(first, first + count)
    ]
    await asyncio.gather(*(worker.register() for worker in workers))
    print("registered", flush=True)
    async with asyncio.TaskGroup() as group:
        for worker in workers:
            group.create_task(worker.run())


class SimulatedWorker:
    """Worker with a connection for each thing that it may wait for."""

    def __init__(self, port: int, number: int, seconds: float) -> None:
        self._port, self._number, self._seconds = port, number, seconds
        self._dice = random.Random(number)
        self._path = ""
        self._lease: dict[str, Any] | None = None
        self._step = 0
        self._heartbeat_seconds = 10.0

    async def register(self) -> None:
        async with Connection(self._port) as connection:
            body = REGISTRATION | {"name": f"simulated-{self._number}"}
            registered = (await connection.post("/v1/workers", body)).json()
        self._path = f"/v1/workers/{registered['worker_id']}"
        self._heartbeat_seconds = registered["heartbeat_seconds"]

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._work())
            group.create_task(self._beat())
            group.create_task(self._report())
            group.create_task(self._await_commands())

    async def _work(self) -> None:
        await asyncio.sleep(self._dice.uniform(0.0, self._seconds))
        async with Connection(self._port) as connection:
            for number in itertools.count():
                claim = {"claim_id": f"{self._number}-{number}", "num_jobs": 1}
                claimed = await connection.post(f"{self._path}/claim?wait={_POLL_SECONDS:g}", claim)
                for lease in _json_of(claimed)["leases"]:
                    await self._draw(connection, lease)

    async def _draw(self, connection: Connection, lease: dict[str, Any]) -> None:
        self._lease, self._step = lease, 0
        seconds = self._seconds * self._dice.uniform(0.5, 1.5)
        for step in range(1, _STEPS + 1):
            await asyncio.sleep(seconds / _STEPS)
            self._step = step
        self._lease = None
        done = {"lease_token": lease["lease_token"], "result": _RESULT, "actual_seconds": seconds}
        _json_of(await connection.post(f"/v1/leases/{lease['job_id']}/complete", done))

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_seconds)
            held = [_held(self._lease, self._step)] if self._lease else []
            body = {"report": {"state": "occupied" if held else "ready"}, "held": held}
            _json_of(await self._post_anew("heartbeat", body))

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(_REPORT_SECONDS)
            if (lease := self._lease) is not None:
                report = {
                    "lease_token": lease["lease_token"],
                    "phase": "denoise",
                    "step": self._step,
                    "total": _STEPS,
                }
                body = {"jobs": [{"job_id": lease["job_id"], "report": report}]}
                _json_of(await self._post_anew("progress", body))

    async def _post_anew(self, route: str, body: dict[str, Any]) -> Answer:
        """Post over a connection of its own: the server closes those that idle for some seconds."""
        async with Connection(self._port) as connection:
            return await connection.post(f"{self._path}/{route}", body)

    async def _await_commands(self) -> None:
        request = f"GET {self._path}/control?wait={_POLL_SECONDS:g} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        async with Connection(self._port) as connection:
            while True:
                _json_of(await connection.send(request.encode()))


def _held(lease: dict[str, Any], step: int) -> dict[str, Any]:
    token = {"job_id": lease["job_id"], "lease_token": lease["lease_token"]}
    return token | {"phase": "denoise", "step": step, "total": _STEPS}


def _json_of(answer: Answer) -> Any:
    if answer.status != 200:
        raise RuntimeError(f"a worker was answered {answer.status}: {answer.body[:500]!r}")
    return answer.json()


if __name__ == "__main__":
    main()
