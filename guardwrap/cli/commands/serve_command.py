"""``guardwrap serve``: an HTTP server that speaks OpenAI's protocol."""

from __future__ import annotations

import ipaddress
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from guardwrap.cli.shared import AllowCode, Verbose, known, load_generator
from guardwrap.cli.signals import ends_at_once
from guardwrap.errors import UsageError

__all__ = ["serve"]


def serve(
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Settings, a YAML file; options replace its fields.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="A Hub id, a folder, or 'local': the embedded model, if left out."),
    ] = None,
    constraints: Annotated[
        str | None,
        typer.Option(
            "--constraints", "-c", metavar="FOLDER", help="Its .yaml files are constraints that requests may name."
        ),
    ] = None,
    always: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="One of these, or catalogue:NAME, that every text must satisfy."),
    ] = None,
    adapter: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Draw attempts from this adapter: its folder or Hub id.")
    ] = None,
    dtype: Annotated[str | None, typer.Option(help="What the model computes in: float32, bfloat16 or float16.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; if left out 127.0.0.1.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="If left out 8000; 0 takes a free one, and says which.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Attempts side by side, at most; if left out 32.")] = None,
    keys: Annotated[str | None, typer.Option("--keys", metavar="FILE", help="A file with one API key a line.")] = None,
    allow_code: AllowCode = False,
    verbose: Verbose = 0,
) -> None:
    """Serve a model over HTTP, as OpenAI's clients and vLLM's know it.

    Every text that leaves satisfies what its request asks for: response_format, structured_outputs, or any constraint
    in the field "guardwrap". SIGTERM and Ctrl-C let what runs come to its end first.
    """
    missing = [name for name in ("fastapi", "uvicorn", "prometheus_client") if find_spec(name) is None]
    if missing:
        raise UsageError(f"guardwrap serve needs {missing[0]}, which is not installed: pip install 'guardwrap[serve]'")
    with ends_at_once():
        from guardwrap.serve.lifecycle import listen, log_to_stderr, run_server, url_of
        from guardwrap.serve.parsed_request import ANYTHING
        from guardwrap.serve.routes import create_app, menu_of
        from guardwrap.serve.server_settings import read_server_settings
    changes = known(
        {
            "model": model,
            "constraints": constraints,
            "always": always or None,
            "adapter": adapter,
            "dtype": dtype,
            "host": host,
            "port": port,
            "batch_size": batch_size,
            "keys": None if keys is None else {"file": keys},
            "allow_code": allow_code or None,
        }
    )
    settings = read_server_settings(config, changes=changes)
    if settings.allow_code and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    menu = menu_of(settings)  # what is wrong with it is said before a model is loaded
    listening = listen(settings.host, settings.port)
    guarded = load_generator(
        settings.model,
        ANYTHING,
        dtype=settings.dtype,
        adapter=settings.adapter,
        batch_size=settings.batch_size,
    )
    guarded.session.job({"seed": 0})  # the model is tried now, and not while somebody waits
    app = create_app(guarded, settings, menu)
    log_to_stderr()
    url = url_of(listening)
    if settings.keys is None and not _is_loopback(listening.getsockname()[0]):
        typer.echo("guardwrap: without keys, whoever reaches this server may use it (see keys: in docs)", err=True)
    run_server(app, listening, lambda: typer.echo(f"guardwrap serves {settings.served_name} on {url}"))


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
