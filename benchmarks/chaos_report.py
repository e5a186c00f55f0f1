"""The chaos run's table and its result files."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from bench_report import RESULTS, read_conditions, write_report
from chaos_audit import AuditCounts
from chaos_clients import Followed
from chaos_faults import InjectedFaults, Plan
from chaos_webhooks import WebhookCounts
from diffuserve.jobs.webhooks.outbox import MAX_AT_ONCE_PER_ENDPOINT

_TRY_AGAIN_SECONDS = 60.0  # when a webhook whose sender was killed comes due again


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A run on a database; `fenced_writes` is the control plane's count."""

    database: str
    plan: Plan
    toll: InjectedFaults
    verdict: AuditCounts
    webhooks: WebhookCounts
    followed: Followed
    failed_starts: int
    fenced_writes: int
    seconds: float
    setup: Mapping[str, Any]

    @property
    def shortfalls(self) -> list[str]:
        """Reasons why the run proves nothing; empty if it is valid."""
        return [reason for reason, holds in (self._promises | self._attempts).items() if not holds]

    @property
    def _promises(self) -> dict[str, bool]:
        webhooks, followed = self.webhooks, self.followed
        is_grace_enough = self.plan.webhook_grace_seconds > _TRY_AGAIN_SECONDS
        return {
            "a job was lost, doubled, damaged or left over": self.verdict.is_clean,
            "a webhook is missing": not webhooks.missing and not (is_grace_enough and webhooks.owed),
            "a webhook was untrue": not webhooks.untrue,
            f"more than {self._most_repeats} webhooks came again": webhooks.repeated <= self._most_repeats,
            "a follower missed an event": not followed.gaps,
        }

    @property
    def _most_repeats(self) -> int:
        """Webhooks in flight each time that their sender or the database was killed or suspended."""
        toll = self.toll
        hurt = toll.kills.get("server", 0) + toll.server_freezes + 2 * toll.database_restarts
        return MAX_AT_ONCE_PER_ENDPOINT * hurt

    @property
    def _attempts(self) -> dict[str, bool]:
        toll, plan = self.toll, self.plan
        return {
            f"fewer than {plan.num_kills} kills": toll.num_kills >= plan.num_kills,
            "no write was fenced": self.fenced_writes > 0 or not plan.num_freezes,
            "no job was interrupted": self.verdict.interrupted > 0,
            "a freeze of a control plane is missing": toll.server_freezes >= plan.num_server_freezes,
            "a blackout is missing": toll.blackouts >= plan.num_blackouts,
            "a kill of Valkey is missing": toll.valkey_kills >= plan.num_valkey_kills,
            "a database restart is missing": toll.database_restarts >= plan.num_database_restarts,
            "nobody followed a job": self.followed.jobs > 0,
        }


def rows_of(outcome: Outcome) -> dict[str, str]:
    return {**_setup_rows(outcome), **_verdict_rows(outcome), **_toll_rows(outcome)}


def _setup_rows(outcome: Outcome) -> dict[str, str]:
    return {name: f"{value}" for name, value in outcome.setup.items()}


def _verdict_rows(outcome: Outcome) -> dict[str, str]:
    verdict, webhooks, followed = outcome.verdict, outcome.webhooks, outcome.followed
    failed = ", ".join(f"{count} {code}" for code, count in verdict.failed_by_code.items())
    others = {name: count for name, count in verdict.statuses.items() if name not in ("succeeded", "failed")}
    return {
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
        "jobs told by webhook": f"{webhooks.told}",
        "**webhooks missing**": f"**{webhooks.missing}**",
        "webhooks still in the outbox": f"{webhooks.owed}",
        "webhooks that came again": f"{webhooks.repeated}",
        "webhooks forged or untrue": f"{webhooks.untrue}",
        "jobs followed by server-sent events": f"{followed.jobs}",
        "streams that broke and were resumed": f"{followed.resumed}",
        "**jobs followed with a gap**": f"**{followed.gaps}**",
    }


def _toll_rows(outcome: Outcome) -> dict[str, str]:
    toll, verdict = outcome.toll, outcome.verdict
    kills = ", ".join(f"{count} {target}" for target, count in sorted(toll.kills.items()))
    return {
        "kills": f"{toll.num_kills} ({kills})",
        "control planes killed": f"{toll.kills.get('server', 0)}",
        "all control planes killed at once": f"{toll.blackouts}",
        "control planes frozen for a while": f"{toll.server_freezes}",
        "Valkey killed and started again": f"{toll.valkey_kills}",
        "PostgreSQL killed and started again": f"{toll.database_restarts}",
        "starts of a control plane that failed": f"{outcome.failed_starts}",
        "jobs running on what was killed": f"{toll.running_when_killed}",
        "jobs running while a control plane was killed": f"{toll.running_when_server_killed}",
        "workers frozen past their lease": f"{toll.freezes}, with {toll.running_when_frozen} jobs",
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
