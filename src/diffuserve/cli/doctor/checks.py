"""The checks of `diffuserve doctor`: from facts to their results, without effects."""

from collections.abc import Callable
from typing import Final

from diffuserve.cli.display.sizes import human_bytes
from diffuserve.cli.doctor.check_result import CheckResult, failed, ok, warning
from diffuserve.cli.doctor.facts import Facts, ModelFacts
from diffuserve.cli.doctor.fit import check_fit
from diffuserve.domain.extras import Extra
from diffuserve.domain.models.quantization import Quantization

_TORCH_PAGE: Final = "https://pytorch.org/get-started"
_OLDEST_PYTHON = (3, 11)
_LITTLE_DISK, _SOME_DISK = 1e9, 10e9
_SLOW_DISK, _SLOW_SYNC_SECONDS = 50e6, 0.05
_SKEW_SECONDS, _BAD_SKEW_SECONDS = 2.0, 60.0  # buckets refuse requests that are minutes off
_MIN_OPEN_FILES = 4_096  # connections that a server accepts, by default


def check_all(facts: Facts) -> list[CheckResult]:
    """Return the results of all checks that apply."""
    checked = (check(facts) for check in CHECKS)
    return [result for result in checked if result is not None]


def check_python(facts: Facts) -> CheckResult:
    version = ".".join(map(str, facts.machine.python))
    if facts.machine.python[:2] < _OLDEST_PYTHON:
        return failed("python", version, "install Python 3.11 or later")
    return ok("python", version)


def check_torch(facts: Facts) -> CheckResult:
    torch = facts.torch
    if not torch.is_installed:
        return warning(
            "torch",
            "not installed: generate, serve and worker need it",
            f"{Extra.ENGINE.remedy}; `diffuserve api` does not",
        )
    if torch.problem:
        return failed(
            "torch", f"cannot be imported: {torch.problem}", f"install it again: {Extra.ENGINE.remedy}"
        )
    return ok("torch", f"{torch.version}, built for {f'CUDA {torch.cuda}' if torch.cuda else 'CPUs'}")


def check_device(facts: Facts) -> CheckResult | None:
    torch, gpus = facts.torch, "; ".join(facts.machine.gpus)
    if not _has_torch(facts):
        return None
    if torch.device_problem:
        return failed("device", torch.device_problem, "give --device cpu, or repair the GPU's driver")
    if gpus and torch.used_device == "cpu" and facts.wanted_device != "cpu":
        return failed("device", f"torch uses the CPU though there is a GPU ({gpus})", _gpu_remedy(facts))
    if torch.used_device == "cpu":
        return _check_cpu(facts)
    return ok("device", f"{torch.used_device}, {torch.used_dtype} ({gpus or 'no nvidia-smi'})")


def _check_cpu(facts: Facts) -> CheckResult:
    dtype, products = facts.torch.used_dtype, " and ".join(facts.torch.cpu_products)
    detail = f"cpu, {facts.machine.num_cpus} cores, {dtype}; fast products of {products or 'float32 alone'}"
    if facts.torch.is_dtype_emulated:
        return warning("device", detail, f"this CPU has no instructions for {dtype}: give --dtype float32")
    return ok("device", detail)


def _gpu_remedy(facts: Facts) -> str:
    if facts.torch.cuda is None:
        return f"install a build of torch with CUDA, as {_TORCH_PAGE} shows"
    if not facts.machine.num_driver_devices:
        return "CUDA shows no device: look at CUDA_VISIBLE_DEVICES, and at what the container may use"
    return (
        f"the driver is too old for CUDA {facts.torch.cuda}: update it, or install a torch for an older CUDA"
    )


def check_gpu_memory(facts: Facts) -> CheckResult | None:
    free, total = facts.torch.gpu_free_bytes, facts.torch.gpu_total_bytes
    if not total:
        return None
    detail = f"{human_bytes(free)} of {human_bytes(total)} free"
    if free < total / 2:
        return warning("gpu memory", detail, "another program uses this GPU; `nvidia-smi` shows which")
    return ok("gpu memory", detail)


def check_attention(facts: Facts) -> CheckResult | None:
    torch = facts.torch
    if not _has_torch(facts) or torch.device_problem:
        return None
    if torch.kernel_problem:
        remedy = f"this build of torch does not fit the GPU; install another, as {_TORCH_PAGE} shows"
        return failed("attention", f"{torch.kernel} fails: {torch.kernel_problem}", remedy)
    if torch.used_device != "cpu" and not torch.kernel.startswith("varlen-flash"):
        remedy = (
            "FlashAttention needs a recent torch, bfloat16 or float16, and compute capability 8.0 (Ampere)"
        )
        return warning("attention", f"{torch.kernel}: slower than FlashAttention", remedy)
    return ok("attention", torch.kernel)


def check_memory(facts: Facts) -> CheckResult:
    free, total = facts.machine.memory_free_bytes, facts.machine.memory_bytes
    detail, size = f"{human_bytes(free)} of {human_bytes(total)} free", facts.model.num_bytes
    if free < 2 * size:
        return warning("memory", detail, f"little beside the {human_bytes(size)} of {facts.model.name}")
    return ok("memory", detail)


def check_open_files(facts: Facts) -> CheckResult:
    limit = facts.machine.max_open_files
    if limit < _MIN_OPEN_FILES:
        remedy = f"a busy server needs more: `ulimit -n {16 * _MIN_OPEN_FILES}`, or LimitNOFILE= of systemd"
        return warning("open files", f"at most {limit}", remedy)
    return ok("open files", f"at most {limit}")


def check_disk(facts: Facts) -> CheckResult:
    disk = facts.disk
    if disk.problem:
        return failed("data folder", disk.problem, "give a folder that you may write, with --data-dir")
    detail = (
        f"{disk.folder}: {human_bytes(disk.free_bytes)} free, {human_bytes(disk.bytes_per_second)}/s, "
        f"{1000 * disk.sync_seconds:.1f} ms a sync"
    )
    if disk.free_bytes < _LITTLE_DISK:
        return failed("data folder", detail, "free some space, or give another folder with --data-dir")
    if disk.free_bytes < _SOME_DISK:
        return warning("data folder", detail, "images fill it: free some space, or keep them for less time")
    if disk.bytes_per_second < _SLOW_DISK or disk.sync_seconds > _SLOW_SYNC_SECONDS:
        return warning("data folder", detail, "slow: use a local disk, no network file system")
    return ok("data folder", detail)


def check_database(facts: Facts) -> CheckResult:
    database = facts.database
    if database is None:
        return warning(
            "database",
            "not looked for: the packages of a server are not installed",
            f"{Extra.SERVER.remedy}; clients do not need them",
        )
    if database.problem:
        return failed("database", database.problem, "check DIFFUSERVE_DATABASE_URL, and that the server runs")
    if database.revision is None:
        return ok("database", f"{database.place}: empty; the first start builds it")
    if database.revision < database.head:
        detail = f"{database.place}: schema {database.revision}, {database.head} is the newest"
        return warning(
            "database", detail, "the next start brings it up to date; `diffuserve db upgrade` does now"
        )
    if database.revision > database.head:
        detail = f"{database.place}: schema {database.revision}, of a newer diffuserve than this"
        return failed("database", detail, "install the version that the other servers have")
    return ok("database", f"{database.place}: schema {database.revision}")


def check_bucket(facts: Facts) -> CheckResult | None:
    if facts.bucket is None:
        return None
    if facts.bucket.problem:
        return failed("artifact store", facts.bucket.problem, "no job finishes until this works")
    return ok("artifact store", f"{facts.bucket.place}: a file was stored, found and deleted")


def check_valkey(facts: Facts) -> CheckResult | None:
    if facts.valkey is None:
        return None
    if facts.valkey.problem:
        remedy = (
            "check DIFFUSERVE_VALKEY_URL; until then control planes find one another's changes by polling"
        )
        return warning("valkey", facts.valkey.problem, remedy)
    return ok("valkey", f"{facts.valkey.place} responds")


def check_port(facts: Facts) -> CheckResult:
    port = facts.port
    if port.is_held_by_diffuserve:
        return warning(
            "port", f"{port.address}: a diffuserve server has it", "a second one needs another --port"
        )
    if port.problem:
        return failed("port", f"{port.address}: {port.problem}", "give another with --port, or 0 for any")
    return ok("port", f"{port.address} is free")


def check_model(facts: Facts) -> CheckResult | None:
    model = facts.model
    if not facts.torch.is_installed:
        return None
    if problem := model.problem or facts.torch.model_problem:
        return failed(
            "model", problem, "give another with --model; `diffuserve list` shows those on this machine"
        )
    if not model.is_here:
        return warning("model", f"{model.name}: not on this machine yet", f"{model.pull} {model.name}")
    detail = f"{model.name}: all files are there, {human_bytes(model.num_bytes)}"
    if model.quantization is not Quantization.NONE:
        detail += f", weights in {model.quantization} and loaded so: the files hold no others"
    return ok("model", f"{detail}{_run_by(model)}")


def _run_by(model: ModelFacts) -> str:
    if not model.run_by:
        return ""
    lacks = f", without {' or '.join(model.lacks)}" if model.lacks else ""
    return f"; run by {model.run_by}{lacks}"


def check_settings(facts: Facts) -> CheckResult:
    unknown = facts.unknown_variables
    if not unknown:
        return ok("settings", "every DIFFUSERVE_* variable is a setting")
    hints = [f"{name} (did you mean {like}?)" if like else name for name, like in unknown.items()]
    return warning("settings", f"no settings: {', '.join(hints)}", "docs/reference/settings.md lists all")


def check_clock(facts: Facts) -> CheckResult | None:
    leads = {
        "the database": facts.database.ahead_seconds if facts.database else None,
        "the server": facts.server.ahead_seconds if facts.server and not facts.server.problem else None,
    }
    known = {name: seconds for name, seconds in leads.items() if seconds is not None}
    if not known:
        return None
    name, seconds = max(known.items(), key=lambda item: abs(item[1]))
    detail = f"{abs(seconds):.1f} s {'behind' if seconds > 0 else 'ahead of'} {name}'s"
    remedy = "synchronize the clocks of both machines by NTP: `timedatectl set-ntp true`"
    if abs(seconds) > _BAD_SKEW_SECONDS:
        return failed("clock", detail, remedy)
    return warning("clock", detail, remedy) if abs(seconds) > _SKEW_SECONDS else ok("clock", detail)


def check_server(facts: Facts) -> CheckResult | None:
    server = facts.server
    if server is None:
        return None
    if server.problem:
        return failed("server", server.problem, "start it with `diffuserve serve`, or correct --server")
    if server.key_problem:
        return failed(
            "server", f"{server.url}: {server.key_problem}", "give a key: --key, or DIFFUSERVE_API_KEY"
        )
    if server.waits_for:
        return warning("server", f"{server.url}: {server.waits_for}", "jobs wait in the queue until then")
    return ok("server", f"{server.url} is ready and accepts the key")


def _has_torch(facts: Facts) -> bool:
    return facts.torch.is_installed and not facts.torch.problem


CHECKS: Final[tuple[Callable[[Facts], CheckResult | None], ...]] = (
    check_python,
    check_torch,
    check_device,
    check_gpu_memory,
    check_attention,
    check_memory,
    check_open_files,
    check_disk,
    check_database,
    check_bucket,
    check_valkey,
    check_port,
    check_clock,
    check_model,
    check_fit,
    check_settings,
    check_server,
)
