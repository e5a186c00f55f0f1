"""The chaos run's table and its result files."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench_report import RESULTS, read_conditions, write_report
from chaos_audit import Verdict
from chaos_mischief import Plan, Toll


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One run on one database; `fenced_writes` as the control plane counted them."""

    database: str
    plan: Plan
    toll: Toll
    verdict: Verdict
    fenced_writes: int
    seconds: float
    setup: Mapping[str, Any]

    @property
    def shortfalls(self) -> list[str]:
        """Why the run does not count as a proof; empty if it does."""
        toll, plan, clean = self.toll, self.plan, self.verdict.is_clean
        checks = {
            "a job was lost, doubled, damaged or left over": clean,
            f"fewer than {plan.num_kills} kills": toll.num_kills >= plan.num_kills,
            "no write was fenced": self.fenced_writes > 0 or not plan.num_freezes,
            "no job was interrupted": self.verdict.interrupted > 0,
            "a database restart is missing": toll.database_restarts >= plan.num_database_restarts
            or self.database == "sqlite",
        }
        return [reason for reason, holds in checks.items() if not holds]


def rows_of(outcome: Outcome) -> dict[str, str]:
    toll, verdict = outcome.toll, outcome.verdict
    failed = ", ".join(f"{count} {code}" for code, count in verdict.failed_by_code.items())
    kills = ", ".join(f"{count} {target}" for target, count in sorted(toll.kills.items()))
    others = {name: count for name, count in verdict.statuses.items() if name not in ("succeeded", "failed")}
    return {
        **{name: f"{value}" for name, value in outcome.setup.items()},
        "jobs accepted": f"{verdict.accepted}",
        "jobs succeeded": f"{verdict.statuses.get('succeeded', 0)}",
        "jobs failed for good": f"{verdict.statuses.get('failed', 0)}" + (f" ({failed})" if failed else ""),
        "other statuses": f"{sum(others.values())}",
        "**lost**": f"**{verdict.lost}**",
        "**published twice**": f"**{verdict.doubled}**",
        "results damaged or missing": f"{verdict.damaged}",
        "event logs with gaps": f"{verdict.gaps}",
        "final statuses that changed": f"{verdict.untrue}",
        "leases and queue rows left over": f"{verdict.stuck}",
        "kills": f"{toll.num_kills} ({kills})",
        "jobs running on what was killed": f"{toll.running_when_killed}",
        "jobs running while the server was killed": f"{toll.running_when_server_killed}",
        "workers frozen past their lease": f"{toll.freezes}, with {toll.running_when_frozen} jobs",
        "PostgreSQL killed and started again": f"{toll.database_restarts}",
        "jobs interrupted and run again": f"{verdict.interrupted}",
        "fenced writes": f"{outcome.fenced_writes}",
        "attempts in all": f"{verdict.attempts}",
        "files of lost attempts, to be swept": f"{verdict.orphan_folders}",
        "seconds": f"{outcome.seconds:.0f}",
    }


def table(outcomes: Sequence[Outcome]) -> str:
    columns = [rows_of(outcome) for outcome in outcomes]
    lines = ["| | " + " | ".join(outcome.database for outcome in outcomes) + " |"]
    lines.append("|---|" + "---|" * len(columns))
    lines += [f"| {name} | " + " | ".join(column[name] for column in columns) + " |" for name in columns[0]]
    return "\n".join(lines)


def write_results(outcomes: Sequence[Outcome], folder: Path = RESULTS) -> None:
    conditions = read_conditions(("sqlalchemy", "asyncpg", "aiosqlite", "uvicorn"))
    content = {"runs": [{**asdict(outcome), "shortfalls": outcome.shortfalls} for outcome in outcomes]}
    text = f"# Jobs while processes are killed\n\n{table(outcomes)}"
    write_report(folder / "chaos", content, text, conditions)
