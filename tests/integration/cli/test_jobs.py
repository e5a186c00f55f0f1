"""`diffuserve jobs` against a real server."""

import json

import pytest

from diffuserve.settings import Settings
from support.command import Invoke
from support.server_thread import ServerThread


@pytest.fixture
def finished(invoke: Invoke) -> str:
    """The id of a job that succeeded."""
    job: dict[str, str] = json.loads(invoke("submit", "a [red] star", "--seed", "3", "--wait", "--json").out)
    return job["id"]


@pytest.fixture
def failed(invoke: Invoke) -> str:
    """The id of a job that failed."""
    job: dict[str, str] = json.loads(invoke("submit", "fail", "--wait", "--json").out)
    return job["id"]


def test_jobs_are_listed_newest_first(invoke: Invoke, finished: str, failed: str) -> None:
    lines = invoke("jobs", "list", "--limit", "2").out.splitlines()
    assert lines[0].split() == ["id", "status", "model", "age", "prompt"]
    assert [line.split()[0] for line in lines[1:]] == [failed, finished]
    assert "a [red] star" in lines[2]


def test_jobs_are_listed_by_status(invoke: Invoke, finished: str, failed: str) -> None:
    page = json.loads(invoke("jobs", "list", "--status", "failed", "--json").out)
    ids = [job["id"] for job in page["data"]]
    assert failed in ids
    assert finished not in ids


def test_a_list_is_no_longer_than_its_limit(invoke: Invoke, finished: str, failed: str) -> None:
    assert len(json.loads(invoke("jobs", "list", "--limit", "1", "--json").out)["data"]) == 1


@pytest.mark.parametrize("limit", ["0", "101", "many"])
def test_a_limit_out_of_range_is_refused(invoke: Invoke, limit: str) -> None:
    done = invoke("jobs", "list", "--limit", limit)
    assert done.code == 2
    assert "--limit" in done.err


def test_a_job_is_shown_with_its_input_and_its_images(invoke: Invoke, finished: str) -> None:
    shown = invoke("jobs", "show", finished).out
    rows = dict(line.strip().split(maxsplit=1) for line in shown.splitlines() if len(line.split()) > 1)
    assert (rows["id"], rows["status"], rows["prompt"]) == (finished, "succeeded", "a [red] star")
    assert "seed 3" in shown
    assert "error" not in rows


@pytest.mark.parametrize("columns", ["40", "80"])
def test_a_url_is_on_one_line_whatever_the_width(
    invoke: Invoke, finished: str, columns: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    url = json.loads(invoke("jobs", "show", finished, "--json").out)["result"]["artifacts"][0]["url"]
    path = url.partition("?")[0]  # the signature differs
    [line] = [line for line in invoke("jobs", "show", finished).out.splitlines() if path in line]
    assert len(line.split()[-1]) == len(url)
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on a terminal
    assert any(path in line for line in invoke("jobs", "show", finished).out.splitlines())


def test_a_failed_job_is_shown_with_its_error(invoke: Invoke, failed: str) -> None:
    shown = invoke("jobs", "show", failed).out
    assert "the engine says broken (broken)" in shown


def test_a_job_is_shown_as_json(invoke: Invoke, finished: str) -> None:
    assert json.loads(invoke("jobs", "show", finished, "--json").out)["id"] == finished


def test_cancel_prints_the_new_status(invoke: Invoke) -> None:
    job_id = invoke("submit", "wait").out
    assert invoke("jobs", "cancel", job_id).out.split()[0] == job_id
    assert json.loads(invoke("jobs", "show", job_id, "--json").out)["status"] in ("canceling", "canceled")


@pytest.mark.parametrize("command", ["show", "cancel"])
def test_an_unknown_job_is_one_line_and_exit_code_2(invoke: Invoke, command: str) -> None:
    done = invoke("jobs", command, "nix")
    assert done.code == 2
    assert "nix" in done.err
    assert len(done.err.splitlines()) == 1


def test_a_missing_key_names_the_remedy(
    invoke: Invoke, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = Settings(data_dir=tmp_path_factory.mktemp("keys"), port=0, prompt_filter="none")
    monkeypatch.setenv("DIFFUSERVE_DATA_DIR", str(settings.data_dir))
    secret = invoke("keys", "create", "--tenant", "studio").out
    with ServerThread(settings, has_worker=False) as server:
        refused = invoke("jobs", "list", "--server", server.address)
        assert refused.code == 2
        assert "(with --key, or DIFFUSERVE_API_KEY)" in " ".join(refused.err.split())
        assert invoke("jobs", "list", "--server", server.address, "--key", secret).code == 0
        monkeypatch.setenv("DIFFUSERVE_API_KEY", secret)
        assert invoke("jobs", "list", "--server", server.address).code == 0
