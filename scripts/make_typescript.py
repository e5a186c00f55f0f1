"""Write what the TypeScript client has from the OpenAPI document: types of its schemas, and operations.

    python scripts/make_typescript.py [--check]

The types are made by `openapi-typescript`, which `npm ci` in `clients/typescript` installs. `--check` writes
nothing, and needs no node: the types name the digest of the document that they were made from.
"""

import argparse
import hashlib
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from diffuserve.api.app import create_app
from diffuserve.api.config import ApiConfig
from diffuserve.events.memory import MemoryEventBus
from diffuserve.jobs.config import StoreConfig
from diffuserve.jobs.store import JobStore
from diffuserve.storage.local import LocalArtifactStore

PACKAGE = Path(__file__).resolve().parents[1] / "clients" / "typescript"
TAGS = frozenset({"jobs", "events", "results", "files", "batches", "models"})
"""Groups of operations that programs of clients need."""
_MADE = "// Made by scripts/make_typescript.py; do not change it.\n"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="compare the files, and write nothing")
    document = of_clients(whole_document())
    operations, schemas = PACKAGE / "src" / "operations.ts", PACKAGE / "src" / "schemas.ts"
    if parser.parse_args(arguments).check:
        is_current = operations.read_text("utf-8") == operations_of(document)
        is_current = is_current and schemas.read_text("utf-8").startswith(head_of(document))
        print("" if is_current else "typescript: it differs from the API; run `make typescript`", end="")
        return 0 if is_current else 1
    operations.write_text(operations_of(document), "utf-8")
    schemas.write_text(head_of(document) + types_of(document), "utf-8")
    return 0


def whole_document() -> dict[str, Any]:
    """Return the OpenAPI document of a server without other doors; it needs no open store."""
    bus = MemoryEventBus()
    store = JobStore("sqlite://", bus, StoreConfig())
    return create_app(store, LocalArtifactStore(Path()), bus, ApiConfig()).openapi()


def of_clients(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the operations of clients, what succeeds of them, and the schemas that these name."""
    paths = {path: _kept(operations) for path, operations in document["paths"].items()}
    paths = {path: operations for path, operations in paths.items() if operations}
    known = document["components"]["schemas"]
    schemas = {name: _untitled(known[name]) for name in known if name in _reached(paths, known)}
    info = {"title": document["info"]["title"], "version": "1"}
    return {"openapi": document["openapi"], "info": info, "paths": paths, "components": {"schemas": schemas}}


def operations_of(document: Mapping[str, Any]) -> str:
    """Return the module that has method, path and response of each operation by its id."""
    routes, responses = "", ""
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            name = operation["operationId"]
            routes += f'  {name}: ["{method.upper()}", "{path}"],\n'
            if response := _response_of(operation):
                responses += f"  {name}: {response};\n"
    return (
        f'{_MADE}import type {{ components }} from "./schemas.js";\n\ntype Schemas = components["schemas"];\n'
        f"export const OPERATIONS = {{\n{routes}}} as const;\n\n"
        "/** What operations respond with as JSON, but for those of files and streams. */\n"
        f"export interface Responses {{\n{responses}}}\n"
    )


def _response_of(operation: Mapping[str, Any]) -> str:
    """Return the type of what an operation responds with: none without a body, `""` if it is no JSON."""
    bodies = [told["content"] for told in operation["responses"].values() if told.get("content")]
    schemas = dict.fromkeys(_named([body.get("application/json") for body in bodies]))
    if schemas:
        return " | ".join(f'Schemas["{schema}"]' for schema in schemas)
    return "" if bodies else "undefined"


def head_of(document: Mapping[str, Any]) -> str:
    """Return the first lines of the types, which name the document."""
    digest = hashlib.sha256(json.dumps(document["components"], sort_keys=True).encode()).hexdigest()
    return f"{_MADE}// sha256 of the schemas: {digest}\n"


def types_of(document: Mapping[str, Any]) -> str:
    """Return the types of the document's schemas."""
    generator = PACKAGE / "node_modules" / ".bin" / "openapi-typescript"
    command = [str(generator), "--default-non-nullable", "false"]
    alone = json.dumps({**document, "paths": {}})
    return subprocess.run(command, input=alone, capture_output=True, text=True, check=True).stdout


def _kept(operations: Mapping[str, Any]) -> dict[str, Any]:
    """Return the operations of clients, without the responses that are errors."""
    return {
        method: operation
        | {"responses": {code: told for code, told in operation["responses"].items() if code < "3"}}
        for method, operation in operations.items()
        if TAGS.issuperset(operation["tags"])
    }


def _reached(part: object, known: Mapping[str, Any]) -> set[str]:
    """Return the names of the schemas that a part of the document refers to, and so on."""
    found: set[str] = set()
    waiting = set(_named(part))
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting |= set(_named(known[name])) - found
    return found


def _named(part: object) -> Iterator[str]:
    match part:
        case {"$ref": str(target)}:
            yield target.rpartition("/")[2]
        case dict():
            for value in part.values():
                yield from _named(value)
        case list():
            for value in part:
                yield from _named(value)


def _untitled(part: Any) -> Any:
    """Return a schema without the titles that repeat its fields' names."""
    if isinstance(part, list):
        return [_untitled(each) for each in part]
    if not isinstance(part, dict):
        return part
    return {
        name: _untitled(value)
        for name, value in part.items()
        if not (name == "title" and isinstance(value, str))
    }


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
