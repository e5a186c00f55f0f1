"""Each alert fires when it should, after its time and not before, and not otherwise, by promtool."""

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import yaml

from support.monitoring import FOLDER, alerts, prometheus, running, skip_without
from support.ports import free_port
from support.waiting import block_until

ROOT = Path(__file__).parents[2]
Series = dict[str, str]
"""Values of each series, one a minute, in promtool's notation."""


@dataclass(frozen=True)
class Case:
    """Series under which an alert fires, and others under which it stays silent.

    `labels` are those of the alert beside its severity; `after` is when the first test of its expression may
    hold, in minutes. `quiet` are two or fewer faults of a service with little to do, which wake nobody.
    """

    bad: Series
    good: Series
    labels: Mapping[str, str]
    after: int = 1
    quiet: Series = field(default_factory=dict)


def at(*minutes: int) -> str:
    """Return a counter that grows by one in each of these minutes, over two hours."""
    return " ".join(str(sum(each <= minute for each in minutes)) for minute in range(120))


def seldom(name: str, bad: str, good: str, *minutes: int) -> Series:
    """Return a counter's series: some bad in these minutes, by their labels, and three good ones."""
    return {f"{name}{{{bad}}}": at(*minutes), f"{name}{{{good}}}": at(10, 32, 50)}


def seldom_failed(*minutes: int) -> Series:
    return seldom("diffusion_requests_total", 'status="failed"', 'status="succeeded"', *minutes)


def ended(failed: int, succeeded: int, canceled: int = 0) -> Series:
    """Return jobs that ended by status, so many more each minute."""
    by_status = {"failed": failed, "succeeded": succeeded, "canceled": canceled}
    return {
        f'diffusion_requests_total{{status="{status}",model="m"}}': f"0+{num}x600"
        for status, num in by_status.items()
    }


def durations(above_60: int) -> Series:
    """Return 1,000 jobs a minute that succeeded, of which so many took between one and two minutes."""
    bounds = {"60": 1000 - above_60, "120": 1000, "+Inf": 1000}
    name = "diffusion_job_duration_seconds_bucket"
    buckets = {f'{name}{{status="succeeded",le="{le}"}}': f"0+{num}x600" for le, num in bounds.items()}
    return buckets | {'diffusion_job_duration_seconds_count{status="succeeded"}': "0+1000x600"}


def two_slow() -> Series:
    """Return two jobs that took between one and two minutes, within five minutes, and none beside them."""
    name, both = "diffusion_job_duration_seconds", at(30, 34)
    counts = {'_bucket{le="60.0",': at(), '_bucket{le="120.0",': both, '_bucket{le="+Inf",': both}
    counts["_count{"] = both
    return {f'{name}{key}status="succeeded"}}': values for key, values in counts.items()}


def waiting(num_jobs: int, leases_a_minute: int, band: str = "standard") -> Series:
    """Return a queue that two control planes report, and the jobs that workers take."""
    queue = f'diffusion_queue_size{{pool="m",band="{band}",instance="%s"}}'
    return {queue % instance: f"{num_jobs}x600" for instance in "ab"} | {
        'diffusion_leases_granted_total{pool="m"}': f"0+{leases_a_minute}x600"
    }


def oldest(seconds: int, band: str = "standard") -> Series:
    """Return how long the oldest job of a band has waited, as two control planes report it."""
    oldest = f'diffusion_queue_oldest_seconds{{pool="m",band="{band}",instance="%s"}}'
    return {oldest % instance: f"{seconds}x600" for instance in "ab"}


def leases(expired: int) -> Series:
    return {
        "diffusion_leases_expired_total": f"0+{expired}x600",
        'diffusion_leases_granted_total{pool="m"}': "0+1000x600",
    }


def memory(used: int) -> Series:
    labels = '{instance="w",gpu_id="0"}'
    return {f"gpu_memory_used_bytes{labels}": f"{used}x600", f"gpu_memory_total_bytes{labels}": "100x600"}


def one(name: str, value: int) -> Series:
    """Return a metric of one control plane."""
    return {f'{name}{{instance="c"}}': f"{value}x600"}


def responses(failed: int, succeeded: int, not_ready: int = 0) -> Series:
    """Return responses by status, so many more each minute."""
    name = "diffusion_http_request_duration_seconds_count"
    counts = {("/v1/jobs", 503): failed, ("/v1/jobs", 202): succeeded, ("/readyz", 503): not_ready}
    return {
        f'{name}{{route="{route}",status="{status}"}}': f"0+{num}x600"
        for (route, status), num in counts.items()
    }


def few_responses() -> Series:
    """Return two errors of the server within five minutes, and three responses beside them."""
    name = "diffusion_http_request_duration_seconds_count"
    return seldom(name, 'route="/v1/jobs",status="500"', 'route="/v1/jobs",status="202"', 30, 34)


def up(control: int, worker: int) -> Series:
    return {
        'up{job="diffuserve-control",instance="c"}': f"{control}x600",
        'up{job="diffuserve-worker",instance="w"}': f"{worker}x600",
    }


CASES: dict[str, Case] = {
    "SlowJobs": Case(durations(20), durations(5), {}, quiet=two_slow()),
    "LongQueue": Case(oldest(301), oldest(300) | oldest(9000, "batch"), {"pool": "m"}, after=0),
    "NobodyClaims": Case(
        waiting(1, 0), waiting(9, 1), {"pool": "m"}, after=0, quiet=waiting(9, 0, band="batch")
    ),
    "HighErrorRate": Case(ended(6, 94), ended(4, 96, canceled=100), {}, quiet=seldom_failed(30, 34)),
    "ErrorBudgetBurnsFast": Case(ended(15, 85), ended(14, 86), {}, quiet=seldom_failed(30)),
    "ErrorBudgetBurnsSlowly": Case(ended(7, 93), ended(5, 95), {}, quiet=seldom_failed(30, 40)),
    "LeasesExpire": Case(
        leases(11),
        leases(9),
        {},
        quiet={"diffusion_leases_expired_total": at(30, 34)} | {"diffusion_leases_granted_total": at(10, 30)},
    ),
    "WebhookBacklog": Case(
        {"diffusion_webhook_backlog": "101x600"}, {"diffusion_webhook_backlog": "100x600"}, {}, after=0
    ),
    "DoublePublish": Case(
        {"diffusion_double_publishes_total": "0x5 1x600"},
        {"diffusion_double_publishes_total": "0x600"},
        {},
        6,
    ),
    "DatabaseUnavailable": Case(
        one("diffusion_database_up", 0), one("diffusion_database_up", 1), {"instance": "c"}, after=0
    ),
    "DatabaseUnwritable": Case(
        one("diffusion_database_writable", 0) | one("diffusion_database_up", 1),
        one("diffusion_database_writable", 0) | one("diffusion_database_up", 0),
        {"instance": "c"},
        after=0,
    ),
    "StoreUnavailable": Case(
        one("diffusion_store_up", 0), one("diffusion_store_up", 1), {"instance": "c"}, after=0
    ),
    "EventBusDown": Case(
        one("diffusion_event_bus_connected", 0), one("diffusion_event_bus_connected", 1), {"instance": "c"}, 0
    ),
    "Http5xx": Case(responses(6, 94), responses(4, 96, not_ready=50), {}, quiet=few_responses()),
    "GpuMemoryFull": Case(memory(96), memory(95), {"instance": "w", "gpu_id": "0"}, after=0),
    "ControlPlaneMissing": Case(up(0, 1), up(1, 0), {}, after=0),
    "TargetMissing": Case(up(1, 0), up(1, 1), {"job": "diffuserve-worker", "instance": "w"}, after=0),
}


def minutes(duration: str) -> int:
    assert duration.endswith("m"), duration
    return int(duration[:-1])


def rule_tests(name: str, rule: dict[str, Any], case: Case) -> list[dict[str, Any]]:
    """Return what promtool checks: pending before its time, firing after it, and silent under good series.

    A quiet service is looked at in each minute: a share of few jobs comes and goes.
    """
    wait = minutes(rule.get("for", "0m"))
    fires_at = case.after + wait + 1
    fired = {"exp_labels": {**rule["labels"], **case.labels}, "exp_annotations": rule["annotations"]}
    bad: dict[str, Any] = {
        "name": f"{name}: bad",
        "interval": "1m",
        "input_series": [{"series": key, "values": values} for key, values in case.bad.items()],
        "alert_rule_test": [{"eval_time": f"{fires_at}m", "alertname": name, "exp_alerts": [fired]}],
    }
    if wait:
        inside = f"{case.after + wait - 1}m"
        bad["alert_rule_test"].append({"eval_time": inside, "alertname": name, "exp_alerts": []})
        pending = f'count(ALERTS{{alertname="{name}",alertstate="pending"}})'
        bad["promql_expr_test"] = [
            {"expr": pending, "eval_time": inside, "exp_samples": [{"labels": "{}", "value": 1}]}
        ]
    good = {
        "name": f"{name}: good",
        "interval": "1m",
        "input_series": [{"series": key, "values": values} for key, values in case.good.items()],
        "alert_rule_test": [{"eval_time": f"{fires_at + 300}m", "alertname": name, "exp_alerts": []}],
    }
    quiet = {
        "name": f"{name}: quiet",
        "interval": "1m",
        "input_series": [{"series": key, "values": values} for key, values in case.quiet.items()],
        "alert_rule_test": [
            {"eval_time": f"{minute}m", "alertname": name, "exp_alerts": []} for minute in range(120)
        ],
    }
    return [bad, good, *([quiet] if case.quiet else [])]


def test_every_alert_has_a_case() -> None:
    assert list(CASES) == list(alerts())


@pytest.mark.parametrize("name", CASES)
def test_an_alert_fires_after_its_time_alone_and_not_otherwise(name: str, tmp_path: Path) -> None:
    skip_without("promtool")
    alone = {"groups": [{"name": "alone", "rules": [alerts()[name]]}]}  # the others need not be evaluated
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump(alone), encoding="utf-8")
    tests = {
        "rule_files": ["alerts.yaml"],
        "evaluation_interval": "1m",
        "tests": rule_tests(name, alerts()[name], CASES[name]),
    }
    path = tmp_path / "alerts.test.yaml"
    path.write_text(yaml.safe_dump(tests), encoding="utf-8")
    done = subprocess.run(
        ["promtool", "test", "rules", str(path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_has_a_section_of_the_runbook() -> None:
    page = (ROOT / "docs" / "how-to" / "operate.md").read_text(encoding="utf-8")
    sections = re.findall(r"^### (\w+)\n\n(.*?)(?=^#|\Z)", page, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in sections] == list(alerts())
    for name, text in sections:
        for part in ("**Meaning.**", "**Look at.**", "**Do.**"):
            assert part in text, (name, part)
    assert {name: rule["annotations"]["runbook_url"] for name, rule in alerts().items()} == {
        name: f"https://docs.example.com/how-to/operate/#{name.lower()}" for name in alerts()
    }


class _Receiver(HTTPServer):
    """Receiver of Alertmanager's webhooks; `names` are those of the alerts that came, by path."""

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), _Request)
        self.names: list[tuple[str, str]] = []


class _Request(BaseHTTPRequestHandler):
    server: _Receiver

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.names += [(self.path, alert["labels"]["alertname"]) for alert in body["alerts"]]
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.mark.slow
def test_alertmanager_sends_an_alert_that_fires_to_its_receiver(tmp_path: Path) -> None:
    """Run both servers, with shorter waits and without a target, so that an alert fires."""
    skip_without("prometheus", "prometheus-alertmanager")
    receiver, manager, port = _Receiver(0), free_port(), free_port()
    Thread(target=receiver.serve_forever, daemon=True).start()
    text = (FOLDER / "alertmanager.yaml").read_text(encoding="utf-8")
    config = tmp_path / "alertmanager.yaml"
    faster = text.replace("127.0.0.1:9094", f"127.0.0.1:{receiver.server_port}")
    config.write_text(faster.replace("group_wait: 30s", "group_wait: 1s"), encoding="utf-8")
    rules = tmp_path / "alerts.yaml"
    rules.write_text((FOLDER / "alerts.yaml").read_text("utf-8").replace("for: 2m", "for: 1s"), "utf-8")
    options = (
        f"--config.file={config}",
        f"--storage.path={tmp_path / 'manager'}",
        f"--web.listen-address=127.0.0.1:{manager}",
        "--cluster.listen-address=",
    )
    scraping = {
        "global": {"evaluation_interval": "1s"},
        "rule_files": [str(rules)],
        "alerting": {"alertmanagers": [{"static_configs": [{"targets": [f"127.0.0.1:{manager}"]}]}]},
    }
    url, log = f"http://127.0.0.1:{manager}", tmp_path / "manager.log"
    with (
        running("prometheus-alertmanager", *options, url=url, log=log),
        prometheus(scraping, port, tmp_path / "prometheus"),
    ):
        block_until(lambda: bool(receiver.names))
    receiver.shutdown()
    receiver.server_close()
    assert set(receiver.names) == {("/page", "ControlPlaneMissing")}
