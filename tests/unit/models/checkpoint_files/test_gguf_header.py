"""Headers of GGUF files: what is read, and what a hostile one may not do."""

import struct
from pathlib import Path

import numpy as np
import pytest

from diffuserve.domain.errors import InvalidModel
from diffuserve.models.checkpoint_files.gguf_file import open_gguf
from diffuserve.models.checkpoint_files.gguf_header import read_header
from support.gguf_files import entry, header, tensor_info, text, write_gguf

F32, Q8_0 = 0, 8
UINT8, INT32, TEXT, ARRAY, UINT64 = 0, 5, 8, 9, 10
HUGE = 2**63


def array(kind: int, count: int, content: bytes = b"") -> bytes:
    return struct.pack("<IQ", kind, count) + content


def test_a_file_of_the_package_is_read_with_shapes_turned_around(tmp_path: Path) -> None:
    tensors = {
        "img_in.weight": ("F32", np.zeros((6, 64), np.float32)),
        "norm.scale": ("F16", np.ones(7, np.float16)),
        "patch_embedding.weight": ("F32", np.zeros((3, 4, 1, 2, 2), np.float32)),
    }
    file = open_gguf(write_gguf(tmp_path / "a.gguf", tensors, {"general.license": "apache-2.0"}))
    assert {name: info.shape for name, info in file.tensors.items()} == {
        "img_in.weight": (6, 64),
        "norm.scale": (7,),
        "patch_embedding.weight": (3, 4, 1, 2, 2),
    }
    assert file.metadata["general.architecture"] == "flux"
    assert file.metadata["general.license"] == "apache-2.0"


def test_a_tensor_gets_the_shape_back_that_it_had(tmp_path: Path) -> None:
    """Rows that are no whole blocks are laid out anew by those who make such files."""
    laid_out = {"conv.weight": ("F32", np.arange(512, dtype=np.float32).reshape(2, 256))}
    path = write_gguf(tmp_path / "a.gguf", laid_out, {"comfy.gguf.orig_shape.conv.weight": [32, 4, 2, 2]})
    assert open_gguf(path).tensors["conv.weight"].shape == (32, 4, 2, 2)
    assert open_gguf(path).read("conv.weight").flatten().tolist() == list(range(512))
    path = write_gguf(tmp_path / "b.gguf", laid_out, {"comfy.gguf.orig_shape.conv.weight": [32, 4, 2, 3]})
    with pytest.raises(InvalidModel, match=r"conv.weight.*of other size"):
        open_gguf(path)


def test_vocabularies_and_long_texts_are_walked_over(tmp_path: Path) -> None:
    words = array(TEXT, 3, text("a") + text("b") + text("c" * 1000))
    entries = [
        entry("tokenizer.ggml.tokens", ARRAY, words),
        entry("tokenizer.ggml.scores", ARRAY, array(INT32, 1000, bytes(4000))),
        entry("tokenizer.chat_template", TEXT, text("x" * 100_000)),
        entry("general.name", TEXT, text("small")),
    ]
    (tmp_path / "a.gguf").write_bytes(header([tensor_info("w", (2,))], entries, data=8))
    assert {key for key, value in read_header(tmp_path / "a.gguf").metadata.items() if value is not None} == {
        "general.name"
    }


HOSTILE = {
    "empty": (b"", "truncated in its header"),
    "not one": (b"PK\3\4" + bytes(100), "does not begin with 'GGUF'"),
    "version 1": (header(version=1), "version 1 is not read"),
    "big-endian": (header(version=3 << 24), "big-endian"),
    "cut": (header([tensor_info("w", (2,))], data=8)[:40], "truncated in its header"),
    "as many tensors as there are numbers": (header(num_tensors=HUGE), "tensors, more than 100,000"),
    "as many entries": (header(num_entries=HUGE), "entries of metadata, more than 100,000"),
    "more tensors than it holds": (header([tensor_info("w", (2,))], num_tensors=99_999), "bytes|truncated"),
    "a long name": (header([tensor_info("w" * 600, (2,))], data=8), "a name has 600 bytes"),
    "a name of no length": (header([tensor_info("", (2,))], data=8), "a name has 0 bytes"),
    "a name that is no text": (header([tensor_info(b"\xff\xfe", (2,))], data=8), "not UTF-8"),
    "a name beyond the file": (b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, HUGE), "a name has"),
    "an array as long as numbers go": (
        header(entries=[entry("a", ARRAY, array(UINT8, HUGE))]),
        "truncated in its header",
    ),
    "texts as many as numbers go": (
        header(entries=[entry("a", ARRAY, array(TEXT, HUGE))]),
        "texts, more than 1,000,000",
    ),
    "more bytes than any header": (
        header(entries=[entry("a", ARRAY, array(UINT8, 2**26))], data=2**26),
        "its header is longer than",
    ),
    "arrays in arrays": (
        header(entries=[entry("a", ARRAY, array(ARRAY, 2, array(ARRAY, 2)))]),
        "unknown type 9",
    ),
    "a value of no type": (header(entries=[entry("a", 99, b"")]), "unknown type 99"),
    "a key twice": (header(entries=[entry("a", UINT8, b"1"), entry("a", UINT8, b"2")]), "'a' twice"),
    "no dimensions": (header([tensor_info("w", ())]), "has 0 dimensions"),
    "too many dimensions": (header([tensor_info("w", (1,) * 6)], data=8), "has 6 dimensions"),
    "a side of none": (header([tensor_info("w", (4, 0))], data=8), "cannot be in F32"),
    "sides whose product wraps around": (
        header([tensor_info("w", (2**33, 2**31))], data=8),
        "truncated: 'w'",
    ),
    "no whole blocks": (
        header([tensor_info("w", (33, 2), Q8_0)], data=100),
        "cannot be in Q8_0, blocks of 32",
    ),
    "a format that is none": (
        header([tensor_info("w", (2,), 99)], data=8),
        "not read .number 99.; take one in F32",
    ),
    "a format that was taken back": (header([tensor_info("w", (32,), 4)], data=99), "not read .number 4."),
    "beyond the end": (header([tensor_info("w", (4,))], data=8), "truncated: 'w' ends at byte"),
    "an offset beyond the end": (header([tensor_info("w", (2,), offset=2**40)], data=8), "truncated: 'w'"),
    "an offset out of line": (header([tensor_info("w", (2,), offset=4)], data=64), "not at a multiple of 32"),
    "overlapping": (
        header([tensor_info("w", (16,)), tensor_info("v", (8,), offset=32)], data=64),
        "'v' overlaps 'w'",
    ),
    "the same bytes twice": (header([tensor_info("w", (2,)), tensor_info("v", (2,))], data=8), "overlaps"),
    "a name twice": (
        header([tensor_info("w", (2,)), tensor_info("w", (2,), offset=32)], data=64),
        "the same name",
    ),
    "an alignment of none": (
        header([tensor_info("w", (2,))], [entry("general.alignment", 4, bytes(4))], data=8),
        "power of two",
    ),
    "an alignment of three": (
        header([tensor_info("w", (2,))], [entry("general.alignment", 4, struct.pack("<I", 3))], data=8),
        "power of two",
    ),
    "an alignment that is text": (
        header([tensor_info("w", (2,))], [entry("general.alignment", TEXT, text("32"))], data=8),
        "power of two",
    ),
    "no tensors": (header(), "holds no tensors"),
    "a part of several": (
        header([tensor_info("w", (2,))], [entry("split.count", 2, struct.pack("<H", 3))], data=8),
        "llama-gguf-split --merge",
    ),
    "a text encoder": (
        header([tensor_info("w", (2,))], [entry("general.architecture", TEXT, text("t5encoder"))], data=8),
        "general.architecture='t5encoder'",
    ),
    "a shape that is no numbers": (
        header(
            [tensor_info("w", (2,))],
            [entry("comfy.gguf.orig_shape.w", ARRAY, array(6, 1, struct.pack("<f", 2.0)))],
            data=8,
        ),
        "of other size",
    ),
}


@pytest.mark.parametrize(("content", "message"), HOSTILE.values(), ids=HOSTILE)
def test_hostile_and_broken_files_are_refused_by_what_is_wrong(
    content: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / "a.gguf").write_bytes(content)
    with pytest.raises(InvalidModel, match=message) as raised:
        open_gguf(tmp_path / "a.gguf")
    assert str(tmp_path / "a.gguf") in str(raised.value)


def test_a_file_that_shrinks_after_it_was_opened_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "a.gguf", {"w": ("F32", np.zeros((64, 64), np.float32))})
    file = open_gguf(path)
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(InvalidModel, match="ends before byte"):
        file.read("w")
