"""Options that several commands have. What is not given comes from the settings."""

from pathlib import Path
from typing import Annotated

import typer

Host = Annotated[str | None, typer.Option(help="Address to listen on.")]
Port = Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")]
DataDir = Annotated[Path | None, typer.Option(help="Folder of the database and the files.")]
DatabaseUrl = Annotated[
    str | None, typer.Option(help="postgresql://USER@HOST/NAME; by default SQLite in the data folder.")
]
ValkeyUrl = Annotated[
    str | None, typer.Option(help="valkey://HOST:PORT, which several control planes share.")
]
NoAuth = Annotated[
    bool, typer.Option("--no-auth", help="Let everyone in who reaches the server, whatever keys there are.")
]
Model = Annotated[str | None, typer.Option(help="Bundled model, folder or hub id.")]
Device = Annotated[str | None, typer.Option(help="cpu or cuda[:n].")]
Dtype = Annotated[str | None, typer.Option(help="bfloat16, float16 or float32.")]
DrainSeconds = Annotated[
    float | None, typer.Option(help="What a stopping worker may take to finish its jobs.")
]
EngineCommand = Annotated[str | None, typer.Option(hidden=True, help="Start this as the engine instead.")]
Server = Annotated[str | None, typer.Option(help="URL of the control plane.")]
Key = Annotated[
    str | None,
    typer.Option(
        help="API key; better in DIFFUSERVE_API_KEY, which other users cannot see.", show_default=False
    ),
]
PromptFilter = Annotated[
    str | None,
    typer.Option(help="What judges prompts: embedded, policy, onnx:/folder, a moderation API's URL, none."),
]
ImageFilter = Annotated[
    str | None, typer.Option(help="What judges images: opennsfw, transformers:/folder, nudenet, none.")
]
NoMetadata = Annotated[
    bool, typer.Option("--no-metadata", help="Leave out of files what they were drawn with.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
