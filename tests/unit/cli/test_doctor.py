"""`diffuserve doctor`: pure checks over facts, and the facts of this machine."""

import asyncio
import json
import shutil
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from diffuserve.cli.doctor import checks, machine
from diffuserve.cli.doctor.check_result import CheckResult, Outcome
from diffuserve.cli.doctor.checks import check_all
from diffuserve.cli.doctor.facts import (
    DatabaseFacts,
    DiskFacts,
    Facts,
    MachineFacts,
    ModelFacts,
    PlaceFacts,
    PortFacts,
    ServerFacts,
    TorchFacts,
)
from diffuserve.cli.doctor.fit import check_fit, loaded_item_bytes
from diffuserve.cli.doctor.services import bucket_facts, database_facts, server_facts, valkey_facts
from diffuserve.cli.doctor.torch_probe import facts_of_torch
from diffuserve.cli.environment import unknown_among
from diffuserve.domain.errors import InvalidModel
from diffuserve.domain.models.offload import Offload
from diffuserve.domain.models.quantization import Quantization
from diffuserve.jobs.database.migrate import HEAD
from diffuserve.models.bundled import bundled_models
from diffuserve.models.registry import load_pipeline
from diffuserve.models.weights.load_plan import LoadPlan
from diffuserve.models.weights.memory_need import MemoryNeed
from diffuserve.settings import Settings
from support.command import Invoke
from support.server_thread import ServerThread

GB = 10**9
CUDA = TorchFacts(
    version="2.12",
    cuda="13.0",
    used_device="cuda:0",
    used_dtype="bfloat16",
    kernel="varlen-flash",
    gpu_free_bytes=78 * GB,
    gpu_total_bytes=80 * GB,
)
GPU = "NVIDIA H100, driver 580.1"
DATABASE = DatabaseFacts(place="postgresql://db/x", revision="0007", head="0007", ahead_seconds=0.1)
HEALTHY = Facts(
    machine=MachineFacts(
        python=(3, 11, 7), num_cpus=16, memory_free_bytes=100 * GB, memory_bytes=128 * GB,
        max_open_files=65_536, gpus=(GPU,), num_driver_devices=1,
    ),
    torch=CUDA,
    disk=DiskFacts(folder="/data", free_bytes=500 * GB, bytes_per_second=1e9, sync_seconds=0.001),
    database=DATABASE,
    port=PortFacts(address="127.0.0.1:8000"),
    model=ModelFacts(
        name="FLUX.1-schnell", num_bytes=34 * GB, step_bytes=GB,
        needs=(
            MemoryNeed(Quantization.NONE, Offload.NONE, 34 * GB),
            MemoryNeed(Quantization.INT4, Offload.NONE, 15 * GB),
            MemoryNeed(Quantization.NONE, Offload.LAYERS, 3 * GB),
        ),
    ),
    bucket=PlaceFacts(place="s3://images"),
    valkey=PlaceFacts(place="cache:6379"),
    server=ServerFacts(url="http://plane:8000", ahead_seconds=-0.3),
)  # fmt: skip
Check = Callable[[Facts], CheckResult | None]


def test_all_is_well_with_a_healthy_machine() -> None:
    findings = check_all(HEALTHY)
    assert len(findings) == len(checks.CHECKS)
    assert {finding.outcome for finding in findings} == {Outcome.OK}
    assert len({finding.check for finding in findings}) == len(findings)


def test_what_does_not_apply_is_left_out() -> None:
    local = replace(
        HEALTHY, torch=TorchFacts(is_installed=False), bucket=None, valkey=None, server=None,
        database=DatabaseFacts(place="jobs.db", head="0007"),
    )  # fmt: skip
    left_out = {"device", "gpu memory", "attention", "model", "artifact store", "valkey", "server", "clock"}
    assert {finding.check for finding in check_all(HEALTHY)} - {
        finding.check for finding in check_all(local)
    } == left_out


MACHINE = HEALTHY.machine


@pytest.mark.parametrize(
    ("check", "changes", "outcome", "said"),
    [
        (checks.check_python, {"machine": replace(MACHINE, python=(3, 10, 1))}, "failed", "3.11 or later"),
        (checks.check_torch, {"torch": TorchFacts(is_installed=False)}, "warning", "diffuserve[engine]"),
        (checks.check_database, {"database": None}, "warning", "diffuserve[server]"),
        (checks.check_torch, {"torch": TorchFacts(problem="libcudart.so")}, "failed", "libcudart.so"),
        (
            checks.check_device,
            {"torch": TorchFacts(version="2.12", used_device="cpu")},
            "failed",
            "install a build of torch with CUDA",
        ),
        (
            checks.check_device,
            {"torch": TorchFacts(version="2.12", cuda="13.0", used_device="cpu")},
            "failed",
            "too old for CUDA 13.0",
        ),
        (
            checks.check_device,
            {
                "torch": TorchFacts(version="2.12", cuda="13.0", used_device="cpu"),
                "machine": replace(MACHINE, num_driver_devices=0),
            },
            "failed",
            "CUDA_VISIBLE_DEVICES",
        ),
        (checks.check_device, {"torch": replace(CUDA, device_problem="no cuda:9")}, "failed", "no cuda:9"),
        (
            checks.check_device,
            {
                "machine": replace(MACHINE, gpus=()),
                "torch": TorchFacts(version="2.12", used_dtype="bfloat16", is_dtype_emulated=True),
            },
            "warning",
            "--dtype float32",
        ),
        (checks.check_gpu_memory, {"torch": replace(CUDA, gpu_free_bytes=36 * GB)}, "warning", "nvidia-smi"),
        (checks.check_attention, {"torch": replace(CUDA, kernel="grouped-sdpa")}, "warning", "Ampere"),
        (checks.check_attention, {"torch": replace(CUDA, kernel_problem="no image")}, "failed", "no image"),
        (checks.check_memory, {"machine": replace(MACHINE, memory_free_bytes=50 * GB)}, "warning", "34.0 GB"),
        (
            check_fit,
            {"torch": replace(CUDA, gpu_free_bytes=20 * GB)},
            "failed",
            "--quantization int4 (15.0 GB: visibly other images, slower steps), or --offload layers (3.0 GB",
        ),
        (check_fit, {"torch": replace(CUDA, gpu_free_bytes=GB)}, "failed", "smaller model"),
        (
            check_fit,
            {"torch": TorchFacts(version="2.12"), "machine": replace(MACHINE, memory_free_bytes=9 * GB)},
            "failed",
            "no option makes it fit: more of memory",
        ),
        (
            check_fit,
            {"model": replace(HEALTHY.model, is_here=False), "torch": replace(CUDA, gpu_free_bytes=30 * GB)},
            "failed",
            "about 34.0 GB for its weights, by what is published",
        ),
        (checks.check_open_files, {"machine": replace(MACHINE, max_open_files=256)}, "warning", "ulimit -n"),
        (checks.check_disk, {"disk": DiskFacts(folder="/x", problem="read-only")}, "failed", "--data-dir"),
        (checks.check_disk, {"disk": replace(HEALTHY.disk, free_bytes=GB // 2)}, "failed", "free some"),
        (checks.check_disk, {"disk": replace(HEALTHY.disk, free_bytes=5 * GB)}, "warning", "images fill it"),
        (checks.check_disk, {"disk": replace(HEALTHY.disk, sync_seconds=0.2)}, "warning", "200.0 ms a sync"),
        (checks.check_database, {"database": replace(DATABASE, problem="refused")}, "failed", "refused"),
        (checks.check_database, {"database": replace(DATABASE, revision="0005")}, "warning", "db upgrade"),
        (
            checks.check_database,
            {"database": replace(DATABASE, revision="0009")},
            "failed",
            "newer diffuserve",
        ),
        (checks.check_bucket, {"bucket": PlaceFacts(place="s3://x", problem="no put")}, "failed", "no put"),
        (checks.check_valkey, {"valkey": PlaceFacts(place="x", problem="away")}, "warning", "polling"),
        (checks.check_port, {"port": PortFacts(address="a:1", problem="in use")}, "failed", "--port"),
        (
            checks.check_port,
            {"port": PortFacts(address="a:1", problem="in use", is_held_by_diffuserve=True)},
            "warning",
            "a diffuserve server has it",
        ),
        (checks.check_model, {"model": ModelFacts(name="x", is_here=False)}, "warning", "diffuserve pull x"),
        (checks.check_model, {"model": ModelFacts(name="x", problem="vae/ is missing")}, "failed", "vae/"),
        (
            checks.check_settings,
            {"unknown_variables": {"DIFFUSERVE_PROT": "DIFFUSERVE_PORT", "DIFFUSERVE_X": None}},
            "warning",
            "DIFFUSERVE_PROT (did you mean DIFFUSERVE_PORT?), DIFFUSERVE_X",
        ),
        (checks.check_clock, {"database": replace(DATABASE, ahead_seconds=9.0)}, "warning", "9.0 s behind"),
        (checks.check_clock, {"database": replace(DATABASE, ahead_seconds=-90.0)}, "failed", "90.0 s ahead"),
        (checks.check_server, {"server": ServerFacts(url="u", problem="away")}, "failed", "diffuserve serve"),
        (checks.check_server, {"server": ServerFacts(url="u", key_problem="no")}, "failed", "--key"),
        (checks.check_server, {"server": ServerFacts(url="u", waits_for="loading")}, "warning", "loading"),
    ],
)
def test_a_problem_is_told_with_what_to_do(
    check: Check, changes: dict[str, Any], outcome: str, said: str
) -> None:
    finding = check(replace(HEALTHY, **changes))
    assert finding is not None
    assert finding.outcome == outcome
    assert said in f"{finding.detail} {finding.remedy}"
    assert finding.remedy


def test_a_model_that_a_library_runs_is_told_with_what_it_lacks() -> None:
    facts = replace(HEALTHY, model=ModelFacts(name="x", run_by="diffusers", lacks=("previews",)))
    finding = checks.check_model(facts)
    assert finding is not None
    assert finding.outcome == "ok"
    assert "run by diffusers, without previews" in finding.detail


def test_a_model_tells_the_bits_that_its_files_hold() -> None:
    model = ModelFacts(name="x", quantization=Quantization.INT4)
    finding = checks.check_model(replace(HEALTHY, model=model))
    assert finding is not None
    assert finding.outcome == "ok"
    assert "weights in int4" in finding.detail


@pytest.mark.parametrize(
    ("torch", "wanted", "stored", "item_bytes"),
    [
        (CUDA, None, "", 2),
        (CUDA, None, "float16", 2),
        (CUDA, None, "float32", 2),
        (CUDA, "bfloat16", "float32", 2),
        (replace(CUDA, gpu_total_bytes=0), None, "bfloat16", 2),
        (replace(CUDA, gpu_total_bytes=0), None, "float16", 4),
        (TorchFacts(used_dtype="float32"), None, "bfloat16", 4),
        (TorchFacts(used_dtype="float32"), "float32", "", 4),
    ],
)
def test_weights_are_counted_in_the_dtype_that_engines_load_them_in(
    torch: TorchFacts, wanted: str | None, stored: str, item_bytes: int
) -> None:
    assert loaded_item_bytes(torch, wanted, stored) == item_bytes


def test_torch_tells_of_its_device_and_tries_its_attention_kernel() -> None:
    facts = TorchFacts(**facts_of_torch("cpu", "float32"))
    assert (facts.used_device, facts.used_dtype, facts.kernel) == ("cpu", "float32", "grouped-sdpa")
    assert (facts.kernel_problem, facts.device_problem) == ("", "")
    assert "cuda:99" in TorchFacts(**facts_of_torch("cuda:99")).device_problem


@pytest.mark.parametrize(
    ("model", "options"),
    [("tiny-sd", {"timestep_spacing": "sideways"}), ("tiny-flux", {"base_image_seq_len": 4096})],
)
def test_a_scheduler_that_loading_refuses_is_a_finding(
    model: str, options: dict[str, Any], tmp_path: Path
) -> None:
    folder = shutil.copytree(bundled_models()[model], tmp_path / model)
    scheduler = folder / "scheduler" / "scheduler_config.json"
    scheduler.write_text(json.dumps(json.loads(scheduler.read_text()) | options))
    with pytest.raises(InvalidModel) as refused:
        load_pipeline(str(folder), LoadPlan(torch.device("cpu")))
    facts = replace(HEALTHY, torch=TorchFacts(**facts_of_torch("cpu", "", str(folder))))
    finding = checks.check_model(facts)
    assert finding is not None
    assert (finding.outcome, finding.detail) == (Outcome.FAILED, str(refused.value))


def test_the_doctor_reads_no_weights_to_say_that_a_model_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffuserve.models.weights.loading._Checkpoint.fill", None)
    assert not TorchFacts(**facts_of_torch("cpu", "", str(bundled_models()["tiny-video"]))).model_problem


@pytest.mark.parametrize(("model", "gigabytes"), [("flux-dev", 33.7), ("sdxl", 6.94), ("wan-2.1-14b", 40.2)])
def test_a_known_model_takes_its_parameters_in_half_precision(model: str, gigabytes: float) -> None:
    needed = machine.model_facts(model, item_bytes=2).needs[0]
    assert needed.num_bytes / GB == pytest.approx(gigabytes, rel=0.01)


def test_a_torch_that_crashes_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")
    facts = machine.torch_facts(None, None)
    assert facts.problem == "it ended with code 1"
    assert checks.check_torch(replace(HEALTHY, torch=facts)).outcome is Outcome.FAILED


def test_a_missing_torch_is_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "find_spec", lambda name: None)
    assert machine.torch_facts(None, None) == TorchFacts(is_installed=False)


def test_the_disk_of_a_folder_that_is_not_there_yet_is_measured(tmp_path: Path) -> None:
    facts = machine.disk_facts(tmp_path / "new" / "data")
    assert (facts.problem, list(tmp_path.iterdir())) == ("", [])
    assert min(facts.free_bytes, facts.bytes_per_second, facts.sync_seconds) > 0


def test_a_folder_that_cannot_be_written_is_a_finding() -> None:
    assert "cannot be written" in machine.disk_facts(Path("/proc/diffuserve")).problem


def test_a_port_of_another_program_is_told_from_one_of_diffuserve(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0)
        taken = machine.port_facts("127.0.0.1", listener.getsockname()[1])
    assert (taken.problem, taken.is_held_by_diffuserve) == ("Address already in use", False)
    assert machine.port_facts("127.0.0.1", 0).problem == ""
    settings = Settings(data_dir=tmp_path, port=0, prompt_filter="none")
    with ServerThread(settings, has_worker=False) as server:
        port = int(server.address.rpartition(":")[2])
        assert machine.port_facts("127.0.0.1", port).is_held_by_diffuserve


def test_a_model_is_checked_without_the_hub(tmp_path: Path) -> None:
    assert machine.model_facts("tiny-flux").num_bytes > 1_000_000
    assert machine.model_facts("nobody/model@" + "0" * 40) == ModelFacts(
        name="nobody/model@" + "0" * 40, is_here=False
    )
    assert machine.model_facts("lumina2") == ModelFacts(name="lumina2", is_here=False)
    assert machine.model_facts("qwen-image").needs
    assert "no model_index.json" in machine.model_facts(str(tmp_path)).problem
    assert "did you mean 'tiny-flux'?" in machine.model_facts("tiny-flx").problem


def test_variables_that_are_no_settings_are_named_with_the_nearest() -> None:
    names = ["DIFFUSERVE_PORT", "DIFFUSERVE_PROT", "PATH", "diffuserve_host"]
    assert unknown_among(names) == {"DIFFUSERVE_PROT": "DIFFUSERVE_PORT"}


async def test_a_database_is_looked_at_and_not_built(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data")
    facts = await database_facts(settings)
    assert (facts.revision, facts.problem, settings.data_dir.exists()) == (None, "", False)


async def test_the_database_of_a_server_has_the_newest_schema(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path / "data", port=0, prompt_filter="none")
    server = ServerThread(settings, has_worker=False)
    await asyncio.to_thread(server.__enter__)
    facts = await database_facts(settings)
    server.__exit__(None, None, None)
    assert (facts.revision, facts.problem, facts.ahead_seconds) == (HEAD, "", None)


async def test_services_that_are_away_are_findings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diffuserve.cli.doctor.services._PATIENCE_SECONDS", 1.0)
    monkeypatch.setattr("diffuserve.cli.client.connect.PATIENCE_SECONDS", 0.1)
    away = Settings(
        database_url="postgresql://x:secret@127.0.0.1:1/x",
        valkey_url="valkey://127.0.0.1:1",
        artifacts_url=(tmp_path / "file" / "artifacts").as_uri(),
        server="http://127.0.0.1:1",
    )
    (tmp_path / "file").write_text("no folder")
    database, valkey = await database_facts(away), await valkey_facts(away)
    bucket, server = await bucket_facts(away), await server_facts(away)
    assert "127.0.0.1:1" in database.problem
    assert "secret" not in f"{database.place}{database.problem}"
    for facts in (valkey, bucket, server):
        assert facts is not None
        assert facts.problem


def test_what_is_not_configured_is_not_asked_for() -> None:
    async def ask() -> list[object]:
        settings = Settings()
        return [await bucket_facts(settings), await valkey_facts(settings), await server_facts(settings)]

    assert asyncio.run(ask()) == [None, None, None]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out torch, whose import takes seconds and has tests of its own."""
    monkeypatch.setattr(machine, "torch_facts", lambda *asked: TorchFacts(version="2.12"))


@pytest.mark.usefixtures("quick")
def test_the_doctor_tells_a_line_for_each_check(invoke: Invoke) -> None:
    outcome = invoke("doctor", "--port", "0")
    assert (outcome.code, outcome.err) == (0, "")
    checked = [line.split()[1] for line in outcome.out.splitlines() if "→" not in line]
    assert checked[:2] == ["python", "torch"]
    assert {"memory", "database", "port", "model", "settings"} <= set(checked)
    assert "\x1b" not in outcome.out


@pytest.mark.usefixtures("quick")
def test_the_doctor_fails_if_a_check_does(invoke: Invoke, tmp_path: Path) -> None:
    outcome = invoke("doctor", "--port", "0", "--model", str(tmp_path), "--json")
    assert outcome.code == 1
    found = {finding["check"]: finding for finding in json.loads(outcome.out)}
    assert found["model"]["outcome"] == "failed"
    assert "server" not in found


@pytest.mark.usefixtures("quick")
def test_the_doctor_asks_a_server_that_is_named(invoke: Invoke, tmp_path: Path) -> None:
    with ServerThread(Settings(data_dir=tmp_path / "server", port=0, prompt_filter="none")) as server:
        outcomes = {"server": "warning"}
        while outcomes["server"] == "warning":  # until its worker has registered
            found = json.loads(invoke("doctor", "--port", "0", "--server", server.address, "--json").out)
            outcomes = {finding["check"]: finding["outcome"] for finding in found}
    assert (outcomes["server"], outcomes["clock"]) == ("ok", "ok")
