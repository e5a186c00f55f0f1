"""The chaos run's table, its result files, and the table in the documents."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.chaos.audit import AuditCounts
from benchmarks.chaos.balancer import Chunks
from benchmarks.chaos.clients import Followed
from benchmarks.chaos.plan import InjectedFaults, Plan
from benchmarks.chaos.tenants import NUM_TENANTS, Crossings
from benchmarks.chaos.webhooks import WebhookCounts
from benchmarks.shared.places import RESULTS, ROOT
from benchmarks.shared.report import read_conditions, refresh, write_counted
from diffuserve.jobs.policy.webhook_turns import SendLimits

DOCUMENT = ROOT / "docs" / "reliability.md"
_TRY_AGAIN_SECONDS = 60.0  # when a webhook whose sender was killed comes due again


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A run on a database; `fenced_writes` is the control plane's count."""

    database: str
    plan: Plan
    toll: InjectedFaults
    verdict: AuditCounts
    webhooks: WebhookCounts
    crossings: Crossings
    network: Chunks | None
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
            "a job was drawn again for an outage": not self.verdict.redrawn,
            "a webhook is missing": not webhooks.missing and not (is_grace_enough and webhooks.owed),
            "a webhook was untrue": not webhooks.untrue,
            "a tenant reached another one's job": not self.num_crossings,
            f"a frozen control plane held up the other for more than {self.plan.goes_on_seconds:g} s": (
                max(self.toll.transaction_freezes, default=0.0) <= self.plan.goes_on_seconds
            ),
            f"more than {self._most_repeats} webhooks came again": webhooks.repeated <= self._most_repeats,
            "a follower missed an event": not followed.gaps,
        }

    @property
    def num_crossings(self) -> int:
        """Jobs that another tenant read, changed, listed, was told of, or was given."""
        return self.crossings.crossed + self.webhooks.crossed + self.verdict.crossed

    @property
    def _most_repeats(self) -> int:
        """Webhooks in flight each time that their sender or the database was killed or suspended."""
        toll = self.toll
        frozen = toll.server_freezes + len(toll.transaction_freezes)
        outages = 2 * (toll.database_restarts + toll.database_outages) + toll.full_disks + toll.clock_steps
        hurt = toll.kills.get("server", 0) + frozen + outages
        return NUM_TENANTS * SendLimits.per_endpoint * hurt

    @property
    def _attempts(self) -> dict[str, bool]:
        toll, plan = self.toll, self.plan
        return {
            f"fewer than {plan.num_kills} kills": toll.num_kills >= plan.num_kills,
            "no write was fenced": self.fenced_writes > 0 or not plan.num_freezes,
            "no job was interrupted": self.verdict.interrupted > 0,
            "a freeze of a control plane is missing": toll.server_freezes >= plan.num_server_freezes,
            "a freeze in a transaction is missing": (
                len(toll.transaction_freezes) >= plan.num_transaction_freezes
            ),
            "a full disk is missing": toll.full_disks >= plan.num_full_disks,
            "a step of the clock is missing": toll.clock_steps >= plan.num_clock_steps,
            "no request for another tenant's job was refused": self.crossings.refused > 0,
            "a blackout is missing": toll.blackouts >= plan.num_blackouts,
            "a kill of Valkey is missing": toll.valkey_kills >= plan.num_valkey_kills,
            "a database restart is missing": toll.database_restarts >= plan.num_database_restarts,
            "an outage of the database is missing": toll.database_outages >= plan.num_database_outages,
            "an outage of the bucket is missing": toll.bucket_outages >= plan.num_bucket_outages,
            "an upload that was cut is missing": toll.cut_uploads >= plan.num_cut_uploads,
            "a kill in a download is missing": toll.download_kills >= plan.num_download_kills,
            "a kill of a decode worker is missing": toll.decode_kills >= plan.num_decode_kills,
            "a freeze of a decode worker is missing": toll.decode_freezes >= plan.num_decode_freezes,
            "a kill of a worker of several models is missing": toll.several_kills >= plan.num_several_kills,
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
        "**drawn again for an outage**": f"**{verdict.redrawn}**",
        "requests for jobs of other tenants": f"{outcome.crossings.asked:,}",
        "**jobs that reached another tenant**": f"**{outcome.num_crossings}**",
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
        "faults in all": f"{toll.num_faults}",
        "kills": f"{toll.num_kills} ({kills})",
        "control planes killed": f"{toll.kills.get('server', 0)}",
        "all control planes killed at once": f"{toll.blackouts}",
        "control planes frozen for a while": f"{toll.server_freezes}",
        "control planes frozen with the lock": _frozen(toll.transaction_freezes),
        "disks full for a while": f"{toll.full_disks}",
        "steps of the database's clock": f"{toll.clock_steps}",
        "chunks cut or stalled between agents and control planes": _network(outcome.network),
        "Valkey killed and started again": f"{toll.valkey_kills}",
        "PostgreSQL killed and started again": f"{toll.database_restarts}",
        "PostgreSQL away": _away(toll.database_outages, outcome.plan.database_away_seconds),
        "the bucket away": _away(toll.bucket_outages, outcome.plan.bucket_away_seconds),
        "the bucket away from the middle of an upload on": _away(
            toll.cut_uploads, outcome.plan.bucket_away_seconds
        ),
        "workers killed that fetched their model": f"{toll.download_kills}",
        "decode workers killed, and frozen past their lease": f"{toll.decode_kills}, {toll.decode_freezes}",
        "workers of several models killed": f"{toll.several_kills}",
        "starts of a control plane that failed": f"{outcome.failed_starts}",
        "jobs running on what was killed": f"{toll.running_when_killed}",
        "jobs running while a control plane was killed": f"{toll.running_when_server_killed}",
        "workers frozen past their lease": f"{toll.freezes}, with {toll.running_when_frozen} jobs",
        "attempts lost that no fault of a worker explains": f"{verdict.unexplained}",
        "jobs interrupted and run again": f"{verdict.interrupted}",
        "fenced writes": f"{outcome.fenced_writes}",
        "attempts in all": f"{verdict.attempts}",
        "files of lost attempts, to be swept": f"{verdict.orphan_folders}",
        "seconds": f"{outcome.seconds:.0f}",
    }


def _frozen(seconds: Sequence[float]) -> str:
    if not seconds:
        return "0"
    return f"{len(seconds)}; the other one went on after {max(seconds):.1f} s at most"


def _away(count: int, seconds: float) -> str:
    return f"{count}, for {seconds:.0f} s each" if count else "0"


def _network(network: Chunks | None) -> str:
    if network is None:
        return "0"
    return f"{network.cut:,} and {network.stalled:,} of {network.sent:,}; all were late"


def table(outcomes: Sequence[Outcome]) -> str:
    columns = [rows_of(outcome) for outcome in outcomes]
    lines = ["| | " + " | ".join(outcome.database for outcome in outcomes) + " |"]
    lines.append("|---|" + "---|" * len(columns))
    lines += [f"| {name} | " + " | ".join(column[name] for column in columns) + " |" for name in columns[0]]
    return "\n".join(lines)


def write_results(outcomes: Sequence[Outcome], folder: Path, name: str) -> None:
    """Write the result files; those of a run on all databases for `RESULTS` go into the document as well."""
    conditions = read_conditions(("sqlalchemy", "asyncpg", "aiosqlite", "uvicorn"))
    content = {"runs": [_kept(outcome) for outcome in outcomes]}
    rows = table(outcomes)
    text = f"# Jobs while processes are killed\n\n{rows}"
    write_counted(folder / name, content, text, conditions)
    if folder == RESULTS and len(outcomes) > 1:
        told = "; ".join(f"{key} {value}" for key, value in conditions.items())
        result = f"[result](../benchmarks/results/{name}_{conditions['date']}.md)"
        refresh(DOCUMENT, name, f"The last run ({result}):\n\n{rows}\n\nConditions: {told}.")


def _kept(outcome: Outcome) -> dict[str, object]:
    """Return what a result file keeps: how many attempts were hurt, without their names."""
    kept = asdict(outcome)
    counts = {name: len(kept["toll"][name]) for name in ("hurt", "excused")}
    return {**kept, "toll": kept["toll"] | counts, "shortfalls": outcome.shortfalls}
