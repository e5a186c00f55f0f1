"""What clients are told of their wait in the response to a submission, beside what they then wait.

    python -m benchmarks eta                 # 2 rounds of 60 jobs for each load
    python -m benchmarks eta --quick         # one round of 12; writes nothing

A real `diffuserve serve` draws small images by the bundled model. Loads are a burst, arrivals at random, and
bursts at random in three bands; then jobs with a deadline come together that not all can meet. An end is
inside if it is between both ends of the range in the first response, a start if it is no earlier than the low
end less the time from start to end, which jobs share, and no later than the high end. Jobs that had started
by then were told no range. Predicted seconds know nothing of other programs, and ranges learn of them only
from jobs that have ended: leave the machine alone.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from itertools import accumulate
from pathlib import Path
from typing import Any

from benchmarks.control.processes import DIFFUSERVE, Program, free_port, serving_environment
from benchmarks.serve.load import running
from benchmarks.shared import workloads
from benchmarks.shared.places import RESULTS
from benchmarks.shared.report import markdown_table, read_conditions, write_report
from diffuserve.bench.http import Http
from diffuserve.bench.outcomes import RequestFault

_SIDES, _STEPS = (128, 192, 256), (4, 8, 12)
_BANDS = (None, "standard", "interactive", "batch")
_LOAD = 0.75
_LEARN_SECONDS = 20.0
"""A worker tells the server what jobs cost with its heartbeat, each ten seconds, and then ranges learn."""
_FINAL = frozenset({"succeeded", "failed", "canceled", "expired"})


@dataclass(frozen=True)
class Asked:
    """A job, the second at which it is submitted, and what is asked for beside its image."""

    second: float
    options: dict[str, Any]


@dataclass(frozen=True)
class Told:
    """What the first response said, and what became of the job; seconds since its submission."""

    low: float
    high: float
    cost: float
    actual: float
    start: float
    end: float

    @property
    def starts_inside(self) -> bool:
        return self.low - (self.end - self.start) <= self.start <= self.high

    @property
    def ends_inside(self) -> bool:
        return self.low <= self.end <= self.high


@dataclass(frozen=True, kw_only=True)
class EtaFigures:
    """Figures of a load: shares in 0…1 of jobs that were told a range, and its width over the median wait.

    `slowness` is the median of what a job took on the device over what was predicted.
    """

    load: str
    num_jobs: int
    num_told: int
    starts_inside: float
    ends_inside: float
    median_wait: float
    width: float
    slowness: float


@dataclass(frozen=True)
class Deadlines:
    """Jobs with a deadline that came together: how many were accepted, and how many of these expired.

    `num_late` are those that were drawn, but ended after their deadline.
    """

    seconds: float
    num_jobs: int
    num_accepted: int
    num_expired: int
    num_late: int


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="play one round of 12, and write nothing")
    parser.add_argument("--label", default="cpu", help="name of the machine in the result's name")
    arguments = parser.parse_args()
    count, rounds = (12, 1) if arguments.quick else (60, arguments.rounds)
    with tempfile.TemporaryDirectory() as folder:
        figures, deadlines = asyncio.run(measure(Path(folder), count, rounds))
    text = "\n\n".join(
        [
            markdown_table("Ranges in the first response", [_row(figure) for figure in figures]),
            markdown_table("Deadlines", [_deadline_row(each) for each in deadlines]),
        ]
    )
    print(text)
    if not arguments.quick:
        about = f"{rounds} rounds of {count} jobs for each load, one worker on {workloads.CHECKPOINT.name}."
        content = {
            "figures": [asdict(figure) for figure in figures],
            "deadlines": [asdict(each) for each in deadlines],
        }
        text = f"# What clients are told of their wait\n\n{about}\n\n{text}"
        write_report(RESULTS / f"eta_{arguments.label}", content, text, read_conditions(("torch",)))


async def measure(folder: Path, count: int, rounds: int) -> tuple[list[EtaFigures], list[Deadlines]]:
    port = free_port()
    command = [*DIFFUSERVE, "serve", "--port", str(port), "--data-dir", str(folder / "data")]
    server = Program("serve", command, serving_environment(), folder / "serve.log")
    told: dict[str, list[Told]] = {}
    deadlines = []
    async with running(server, port, "/readyz"):
        http = Http(f"http://127.0.0.1:{port}", None, 300.0)
        mean = await mean_seconds(http, count)
        for number in range(rounds):
            for name, load in loads(count, mean, number).items():
                played = await play(http, load, number)
                told.setdefault(name, []).extend(played)
            deadlines.append(await play_deadlines(http, count, mean))
        await http.close()
    return [figures_of(name, count * rounds, found) for name, found in told.items()], deadlines


def loads(count: int, mean: float, number: int) -> dict[str, list[Asked]]:
    """Return the loads of a round, on a server that takes `mean` seconds for a job."""
    chance = random.Random(f"eta {number}")
    gaps = (chance.expovariate(_LOAD / mean) for _ in range(count))
    mixed: list[Asked] = []
    second = 0.0
    while len(mixed) < count:
        size = chance.randint(5, 10) if chance.random() < 0.1 else 1
        second += size * chance.expovariate(_LOAD / mean)
        options = {"priority": chance.choice(_BANDS[1:])}
        mixed += [Asked(second, options) for _ in range(size)]
    return {
        "a burst": [Asked(0.02 * place, {}) for place in range(count)],
        "at random": [Asked(due, {}) for due in accumulate(gaps)],
        "bursts in three bands": mixed[:count],
    }


async def mean_seconds(http: Http, count: int) -> float:
    """Return the seconds that a job of a queue takes, once the server has learned what its jobs cost."""
    begun = asyncio.get_running_loop().time()
    while asyncio.get_running_loop().time() < begun + _LEARN_SECONDS:
        jobs = await asyncio.gather(*(submit(http, {}, number) for number in range(count // 2)))
        ended = [await wait(http, job) for job in jobs]
        begin = min(at(job, "created_at") for job in ended)
        seconds = max(at(job, "finished_at") for job in ended) - begin
    return seconds / len(jobs)


async def play(http: Http, load: Sequence[Asked], number: int) -> list[Told]:
    """Submit the jobs when they are due, and return what those were told that were told a range."""
    start = asyncio.get_running_loop().time()

    async def job_of(place: int, asked: Asked) -> Told | None:
        await asyncio.sleep(asked.second - (asyncio.get_running_loop().time() - start))
        job = await submit(http, asked.options, 1_000 * number + place)
        queue = job.get("queue")
        ended = await wait(http, job)
        assert ended["status"] == "succeeded", ended
        if queue is None or queue["eta_s_low"] is None:
            return None
        created = at(ended, "created_at")
        return Told(
            queue["eta_s_low"],
            queue["eta_s_high"],
            ended["cost_seconds"],
            ended["actual_seconds"],
            at(ended, "started_at") - created,
            at(ended, "finished_at") - created,
        )

    found = await asyncio.gather(*(job_of(place, asked) for place, asked in enumerate(load)))
    return [told for told in found if told is not None]


async def play_deadlines(http: Http, count: int, mean: float) -> Deadlines:
    """Submit jobs together with a deadline that about half of them can meet."""
    deadline = round(count * mean / 2, 1)

    async def accepted(number: int) -> dict[str, Any] | None:
        try:
            return await wait(http, await submit(http, {"deadline": deadline}, number))
        except RequestFault as fault:
            if "deadline_unreachable" in str(fault):
                return None
            raise

    jobs = [job for job in await asyncio.gather(*map(accepted, range(count))) if job is not None]
    drawn = [job for job in jobs if job["status"] != "expired"]
    num_late = sum(at(job, "finished_at") - at(job, "created_at") > deadline for job in drawn)
    return Deadlines(deadline, count, len(jobs), len(jobs) - len(drawn), num_late)


async def submit(http: Http, options: dict[str, Any], number: int) -> dict[str, Any]:
    chance = random.Random(f"job {number}")
    side, steps = chance.choice(_SIDES), chance.choice(_STEPS)
    [drawn] = workloads.equal(1, number, side)
    asked = {"prompt": drawn.prompt, "width": side, "height": side, "num_inference_steps": steps}
    job: dict[str, Any] = await http.json("POST", "/v1/jobs", {"input": {**asked, "seed": number}, **options})
    return job


async def wait(http: Http, job: dict[str, Any]) -> dict[str, Any]:
    while job["status"] not in _FINAL:
        job = await http.json("GET", f"/v1/jobs/{job['id']}?wait=25")
    return job


def at(job: dict[str, Any], name: str) -> float:
    return datetime.fromisoformat(job[name]).timestamp()


def figures_of(load: str, num_jobs: int, told: Sequence[Told]) -> EtaFigures:
    wait = statistics.median(each.end for each in told)
    return EtaFigures(
        load=load,
        num_jobs=num_jobs,
        num_told=len(told),
        starts_inside=sum(each.starts_inside for each in told) / len(told),
        ends_inside=sum(each.ends_inside for each in told) / len(told),
        median_wait=wait,
        slowness=statistics.median(each.actual / each.cost for each in told),
        width=statistics.median(each.high - each.low for each in told) / wait,
    )


def _row(figures: EtaFigures) -> dict[str, str]:
    return {
        "load": figures.load,
        "jobs": f"{figures.num_jobs}",
        "told a range": f"{figures.num_told}",
        "starts inside": f"**{figures.starts_inside:.0%}**",
        "ends inside": f"**{figures.ends_inside:.0%}**",
        "median wait": f"{figures.median_wait:.2f} s",
        "median width": f"{figures.width:.1f} waits",
        "actual / predicted seconds": f"{figures.slowness:.2f}",
    }


def _deadline_row(each: Deadlines) -> dict[str, str]:
    return {
        "deadline": f"{each.seconds:g} s",
        "jobs": f"{each.num_jobs}",
        "accepted": f"{each.num_accepted}",
        "expired": f"**{each.num_expired}**",
        "late": f"{each.num_late}",
    }


if __name__ == "__main__":
    main()
