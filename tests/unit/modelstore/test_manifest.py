"""Manifests: what they say is derived from the files, and none that contradicts itself is read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from diffuserve.domain.errors import InvalidModel, ModelNotFound
from diffuserve.models.bundled import bundled_models
from diffuserve.models.weights.fingerprint import hash_weights
from diffuserve.modelstore.description import describe
from diffuserve.modelstore.manifest import (
    MAX_MANIFEST_BYTES,
    Manifest,
    is_reference,
    parse_manifest,
    parse_reference,
)
from diffuserve.modelstore.piece_hashes import PIECE_BYTES
from support.stored_models import manifest_of, write_files

SIZES = {
    "model_index.json": 1_000,
    "text/x.safetensors": PIECE_BYTES,
    "text/y.safetensors": PIECE_BYTES + 1,
    "vae/a.safetensors": 3 * PIECE_BYTES + 70_000,
    "vae/config.json": 3 * 16_384 + 1,
    "vae/empty.txt": 0,
}


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return manifest_of(write_files(tmp_path_factory.mktemp("small"), SIZES))


def test_the_hash_is_the_info_hash_that_libtorrent_computes(manifest: Manifest) -> None:
    """`torrent_info(bdecode(…)).info_hashes().v2` of libtorrent 2.1.1 for the same files and fields."""
    assert manifest.hash == "058269cc7850512d31df0d68fec9713e9f65c114a7b512cd6bc02db0b94121fe"


def test_a_manifest_is_read_as_it_was_written(manifest: Manifest) -> None:
    assert parse_manifest(manifest.to_json(), manifest.hash) == manifest
    assert manifest.num_bytes == sum(SIZES.values())


def test_pieces_are_counted_through_all_files_and_cover_every_byte(manifest: Manifest) -> None:
    assert [piece.index for piece in manifest.pieces] == list(range(len(manifest.pieces)))
    assert sum(piece.size for piece in manifest.pieces) == manifest.num_bytes
    assert {piece.size for piece in manifest.pieces if piece.file.path == "text/y.safetensors"} == {
        PIECE_BYTES,
        1,
    }


@pytest.mark.parametrize("field", ["name", "family", "license", "source"])
def test_every_field_is_part_of_the_hash(manifest: Manifest, field: str) -> None:
    changed = json.loads(manifest.to_json()) | {field: "another"}
    assert parse_manifest(json.dumps(changed).encode()).hash != manifest.hash
    with pytest.raises(InvalidModel, match="changed after it was published"):
        parse_manifest(json.dumps(changed).encode(), manifest.hash)


def test_a_model_is_described_with_the_fingerprint_that_images_record() -> None:
    folder = bundled_models()["tiny-flux"]
    described = describe(folder, "tiny", "apache-2.0", "https://example.com")
    assert described.family == "flux"
    assert described.weights_hash == hash_weights(folder)
    assert parse_manifest(described.to_json(), described.hash) == described


def test_a_truncated_safetensors_file_is_not_described(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    for path in bundled_models()["tiny-flux"].rglob("*"):
        if path.is_file():
            copy = folder / path.relative_to(bundled_models()["tiny-flux"])
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(path.read_bytes())
    weights = next(folder.glob("transformer/*.safetensors"))
    whole = weights.read_bytes()
    for content in (whole[:-1], whole[:100], (1 << 62).to_bytes(8, "little") + whole[8:]):
        weights.write_bytes(content)
        with pytest.raises(InvalidModel, match="truncated or not a safetensors file"):
            describe(folder, "tiny", "", "")


def _file(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["files"][0].update(changes)


def _twice(content: dict[str, Any]) -> None:
    content["files"].append(content["files"][-1])


def _backwards(content: dict[str, Any]) -> None:
    content["files"].reverse()


def _nested(content: dict[str, Any]) -> None:
    """Have one path name a file and a folder."""
    file = content["files"][0]
    content["files"] = [file, {**file, "path": "model_index.json/a.json"}]


def _many(content: dict[str, Any]) -> None:
    file = content["files"][0]
    content["files"] = [file, *({**file, "path": f"vae/{number:06}.json"} for number in range(2_000))]


LIES = {
    "path outside": (_file(path="../model_index.json"), "path"),
    "absolute path": (_file(path="/etc/model.json"), "path"),
    "hidden file": (_file(path=".ssh/model.json"), "path"),
    "deep path": (_file(path="a/b/c.json"), "path"),
    "odd characters": (_file(path="a\\b.json"), "path"),
    "newline": (_file(path="a.json\n"), "path"),
    "pickle": (_file(path="model.bin"), "none of the files that are read"),
    "code": (_file(path="model.py"), "none of the files that are read"),
    "no index": (_file(path="another.json"), "model_index.json is missing"),
    "negative size": (_file(size=-1), "size"),
    "huge size": (_file(size=1 << 50), "size"),
    "size as text": (_file(size="1000"), "size"),
    "too few pieces": (_file(size=2 * PIECE_BYTES), "but 1 pieces"),
    "too many pieces": (_file(size=0), "but 1 pieces"),
    "no hash": (_file(sha256="0" * 63), "sha256"),
    "unknown field": (_file(mode=0o777), "mode"),
    "twice": (_twice, "twice, or out of order"),
    "backwards": (_backwards, "twice, or out of order"),
    "file as folder": (_nested, "twice, or out of order"),
    "many files": (_many, "files"),
    "no files": (lambda content: content.update(files=[]), "model_index.json is missing"),
    "odd name": (lambda content: content.update(name="../x"), "name"),
    "long source": (lambda content: content.update(source="x" * 501), "source"),
    "other format": (lambda content: content.update(format="diffuserve-model/2"), "format"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_manifest_that_lies_is_refused_with_what_is_wrong(manifest: Manifest, lie: str) -> None:
    change, told = LIES[lie]
    content = json.loads(manifest.to_json())
    change(content)
    with pytest.raises(InvalidModel, match=told):
        parse_manifest(json.dumps(content).encode())


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b'"x"', b"\xff", b"[" * 100_000])
def test_what_is_no_manifest_is_refused(content: bytes) -> None:
    with pytest.raises(InvalidModel, match="a manifest that is none"):
        parse_manifest(content)


def test_an_oversized_manifest_is_not_parsed() -> None:
    with pytest.raises(InvalidModel, match="at most 67,108,864 are read"):
        parse_manifest(bytes(MAX_MANIFEST_BYTES + 1))


@pytest.mark.parametrize(
    "text", ["", ".x", "a/b", "a b", "a@", "a@abc", "a@XYZXYZXYZXYZ", f"a@{'0' * 65}", "x" * 101]
)
def test_a_text_that_no_store_takes_as_a_name_is_refused(text: str) -> None:
    assert not is_reference(text)
    with pytest.raises(ModelNotFound, match="names no model of a store"):
        parse_reference(text)


def test_a_reference_means_every_version_or_those_that_begin_so() -> None:
    assert parse_reference("a").fits("0" * 64)
    assert parse_reference("a@0123456789ab").fits("0123456789ab" + "c" * 52)
    assert not parse_reference("a@0123456789ab").fits("f" * 64)
