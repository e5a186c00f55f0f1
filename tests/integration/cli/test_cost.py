"""`diffuserve cost` against a real server, and with a list of prices."""

import json
import re
from pathlib import Path

import pytest

from diffuserve.domain.jobs.job import Artifact, JobResult
from diffuserve.domain.workers.worker import Completion
from diffuserve.settings import Settings
from support.command import Invoke
from support.server_thread import ServerThread
from support.store_driver import add_worker, claim_one, new_job, send_heartbeat

PRICES = """
date: 2026-11-01
machines:
  - {name: A10G, on_demand: 1.00, spot: 0.35, images_per_hour: 600, p95: 12}
  - {name: H100, on_demand: 8.00, images_per_hour: 2500}
"""
GUIDE = Path(__file__).parents[3] / "docs/how-to/count-the-cost.md"
IMAGE = Artifact(name="0.png", content_type="image/png", size_bytes=1, sha256="aa" * 32, width=1, height=1)


async def run_a_job(server: ServerThread, price: float | None) -> None:
    """Draw an image in half a device-second."""
    store = server.store
    worker = await add_worker(store, price_per_hour=price)
    await store.jobs.submit(new_job())
    lease = await claim_one(store, worker)
    result = JobResult(artifacts=(IMAGE,))
    done = Completion(lease_token=lease.lease_token, result=result, actual_seconds=0.5)
    await store.leases.complete(lease.job_id, done)
    await send_heartbeat(store, worker)


@pytest.mark.parametrize(("price", "told"), [(3.6, "worker-hours for"), (None, "start workers with --price")])
def test_a_server_tells_what_its_images_cost(
    price: float | None, told: str, invoke: Invoke, tmp_path: Path
) -> None:
    settings = Settings(data_dir=tmp_path / "fleet", port=0, prompt_filter="none")
    with ServerThread(settings, has_worker=False) as server:
        nothing = invoke("cost", "--server", server.address)
        assert (nothing.code, len(nothing.out.splitlines())) == (0, 1), "a table without rows"
        assert "no worker was registered" in nothing.err
        server.call(run_a_job(server, price))
        shown = invoke("cost", "--server", server.address)
        assert told in shown.err
        row = shown.out.splitlines()[1].split()
        assert row[:5] == ["tiny", "on_demand", "1", "7,200", f"{price or 0.0:.2f}"]
        (cost,) = json.loads(invoke("cost", "--server", server.address, "--json").out)["costs"]
    assert cost["images_per_hour"] == pytest.approx(7_200.0)
    assert cost["per_thousand_busy"] == pytest.approx((price or 0.0) * 1_000.0 / 7_200.0)
    assert cost["per_thousand"] == pytest.approx(cost["per_thousand_busy"] / cost["useful_share"])


def test_the_guides_table_is_what_its_list_gives(invoke: Invoke) -> None:
    guide = GUIDE.read_text(encoding="utf-8")
    prices, table = (re.search(f"```{kind}\n(.*?)```", guide, re.DOTALL) for kind in ("yaml", "text"))
    assert prices is not None
    assert table is not None
    Path("prices.yaml").write_text(prices[1])
    shown = invoke("cost", "--prices", "prices.yaml", "--useful-share", "0.75", "--useful-share", "0.65")
    assert shown.out == table[1].strip()


def test_a_list_of_prices_is_worked_out_at_each_share(invoke: Invoke) -> None:
    Path("prices.yaml").write_text(PRICES)
    shown = invoke("cost", "--prices", "prices.yaml", "--useful-share", "0.65")
    header, *rows = [line.split() for line in shown.out.splitlines()]
    assert header[-5:] == ["per", "1,000", "busy", "at", "65%"]
    assert rows == [
        ["A10G", "on_demand", "1.00", "600", "12.0", "1.67", "2.56"],
        ["A10G", "spot", "0.35", "600", "12.0", "0.58", "0.90"],
        ["H100", "on_demand", "8.00", "2,500", "3.20", "4.92"],
    ]
    assert "prices of 2026-11-01" in shown.err
    found = json.loads(invoke("cost", "--prices", "prices.yaml", "--json").out)
    assert found[2]["per_thousand"] == {"1": pytest.approx(3.2), "0.75": pytest.approx(4.267, abs=0.001)}


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        ("date: 2026-11-01\nmachines: []", "machines"),
        ("date: soon\nmachines: [{name: A, images_per_hour: 1}]", "date"),
        ("date: 2026-11-01\nmachines: [{name: A, images_per_hour: 0}]", "machines.0.images_per_hour"),
        ("date: 2026-11-01\nmachines: [{name: A, images_per_hour: 1, preis: 2}]", "machines.0.preis"),
        ("date: [", "is no YAML"),
        ("", "the file"),
    ],
)
def test_a_list_that_is_wrong_is_refused_with_the_place(content: str, complaint: str, invoke: Invoke) -> None:
    Path("prices.yaml").write_text(content)
    refused = invoke("cost", "--prices", "prices.yaml")
    assert refused.code == 2
    assert complaint in refused.err
    assert "Traceback" not in refused.err


def test_what_is_no_file_and_no_day_is_refused(invoke: Invoke) -> None:
    assert "cannot be read" in invoke("cost", "--prices", "nowhere.yaml").err
    refused = invoke("cost", "--since", "yesterday")
    assert refused.code == 2
    assert "since='yesterday': write a day as 2026-11-30" in refused.err
