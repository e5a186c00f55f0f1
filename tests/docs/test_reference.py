"""The generated parts of the reference are those that the declarations make, on every machine."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from reference.markdown import filled, prose, table

SCRIPTS = Path(__file__).parents[2] / "scripts"
WITHOUT_TORCH = (
    "import sys; sys.modules['torch'] = None; from make_reference import main; sys.exit(main(['--check']))"
)
ELSEWHERE = {"COLUMNS": "20", "LC_ALL": "C", "DIFFUSERVE_PORT": "1", "HOME": "/nowhere", "NO_COLOR": "1"}
PAGE = "Above.\n<!-- generated:start sizes -->\nold\n<!-- generated:end sizes -->\nBelow."


@pytest.mark.slow  # `make check` compares them, too, as it finds the machine
def test_the_committed_pages_are_those_of_the_declarations_whatever_the_machine() -> None:
    command, env = [sys.executable, "-c", WITHOUT_TORCH], os.environ | ELSEWHERE
    ran = subprocess.run(command, cwd=SCRIPTS, env=env, stdout=subprocess.PIPE, text=True, check=False)
    assert (ran.stdout, ran.returncode) == ("", 0)


def test_only_what_stands_between_the_markers_is_replaced() -> None:
    page = filled(PAGE, {"sizes": "new\n"})
    assert page == PAGE.replace("\nold\n", "\n\nnew\n\n")
    assert filled(page, {"sizes": "new\n"}) == page


@pytest.mark.parametrize("page", ["", PAGE + PAGE, PAGE.replace("sizes", "steps")])
def test_a_page_has_one_place_for_each_part(page: str) -> None:
    with pytest.raises(ValueError, match="sizes"):
        filled(page, {"sizes": "new"})


def test_cells_of_a_table_stay_in_it() -> None:
    assert table(["a"], [["x|y\nz"]]) == "| a |\n| --- |\n| x\\|y z |\n"


@pytest.mark.parametrize(
    ("text", "cell"),
    [
        ("Give --model, or not.", "Give `--model`, or not"),
        ("See `--model`.", "See `--model`"),
        ("Bucket: s3://bucket/prefix, or none.", "Bucket: `s3://bucket/prefix`, or none"),
        ('Rules: {"a": {"b": [1]}}; else none.', 'Rules: `{"a": {"b": [1]}}`; else none'),
        ("Serve /docs and and/or nothing.", "Serve `/docs` and and/or nothing"),
    ],
)
def test_what_is_typed_is_shown_as_code(text: str, cell: str) -> None:
    assert prose(text) == cell
