"""`diffuserve batches` against a real server."""

import json
from pathlib import Path

import pytest

from support.command import Invoke


def ids_of(lines: str) -> list[str]:
    return [json.loads(line)["custom_id"] for line in lines.splitlines()]


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    file = tmp_path / "prompts.txt"
    file.write_text("a red circle\n\na [blue] star\n", encoding="utf-8")
    return file


def test_a_file_of_prompts_becomes_a_batch_whose_results_are_written(
    invoke: Invoke, prompts: Path, tmp_path: Path
) -> None:
    done = invoke("batches", "submit", str(prompts), "--wait")
    assert done.code == 0, done.err
    batch_id, _, described = done.out.partition(" ")
    assert described == "completed: 2 of 2 ended (2 succeeded)"
    assert ids_of(invoke("batches", "results", batch_id).out) == ["line-1", "line-3"]
    written = invoke("batches", "results", batch_id, "-o", "results.jsonl")
    assert written.out == "results.jsonl"
    assert ids_of((tmp_path / "results.jsonl").read_text(encoding="utf-8")) == ["line-1", "line-3"]
    assert [path.name for path in tmp_path.iterdir() if path.name.endswith(".partial")] == []
    row = invoke("batches", "list", "--limit", "1").out.splitlines()[1].split()
    assert row[:5] == [batch_id, "completed", "2", "2", "0"]


def test_json_lines_and_a_whole_body_are_submitted(invoke: Invoke, tmp_path: Path) -> None:
    item = {"custom_id": "a", "input": {"prompt": "a star"}}
    lines, body = tmp_path / "items.jsonl", tmp_path / "body.json"
    lines.write_text(json.dumps(item), encoding="utf-8")
    body.write_text(json.dumps({"items": [item, item | {"custom_id": "b"}]}), encoding="utf-8")
    submitted = invoke("batches", "submit", str(lines), "--priority", "standard")
    assert (submitted.code, submitted.out[:6]) == (0, "batch_")
    shown = invoke("batches", "show", submitted.out, "--wait", "--json")
    assert json.loads(shown.out)["counts"]["succeeded"] == 1
    assert json.loads(invoke("batches", "submit", str(body), "--json").out)["num_items"] == 2
    refused = invoke("batches", "submit", str(body), "--model", "hand")
    assert (refused.code, "a JSON body holds its own options" in refused.err) == (2, True)


def test_an_item_that_fails_gives_the_exit_code_1(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("fail\na star\n", encoding="utf-8")
    done = invoke("batches", "submit", "prompts.txt", "--wait")
    assert (done.code, "1 failed" in done.out) == (1, True)


def test_a_batch_is_canceled(invoke: Invoke, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("wait\n", encoding="utf-8")
    batch_id = invoke("batches", "submit", "prompts.txt").out
    assert invoke("batches", "cancel", batch_id).out.split()[1] in ("canceling", "canceled")


def test_what_cannot_be_is_refused(invoke: Invoke, tmp_path: Path) -> None:
    missing = invoke("batches", "submit", "nowhere.jsonl")
    assert (missing.code, "No such file" in missing.err) == (2, True)
    (tmp_path / "items.jsonl").write_text("{}\n", encoding="utf-8")
    invalid = invoke("batches", "submit", "items.jsonl")
    assert (invalid.code, "custom_id" in invalid.err) == (2, True)
    assert invoke("batches", "show", "batch_0").code == 2
    assert invoke("batches", "results", "batch_0", "-o", "results.jsonl").code == 2
    assert list(tmp_path.iterdir()) == [tmp_path / "items.jsonl"]
