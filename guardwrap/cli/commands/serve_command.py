"""``guardwrap serve``: run an OpenAI-compatible HTTP server."""

from __future__ import annotations

import ipaddress
import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from guardwrap.cli.options import AllowCode, Dtype, Verbose
from guardwrap.cli.shared import known, load_generator
from guardwrap.errors import UsageError

if TYPE_CHECKING:
    from guardwrap.generator import GuardedGenerator
    from guardwrap.serve.server_settings import ServerSettings


_Keys = Annotated[str | None, typer.Option("--keys", metavar="FILE", help="A file with one API key per line.")]


def serve(
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="A YAML file with settings; options take precedence."),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", "-m", help="A Hub id, a folder, or 'local' (the embedded model, the default)."),
    ] = None,
    constraints: Annotated[
        str | None,
        typer.Option(
            "--constraints", "-c", metavar="FOLDER", help="A folder of .yaml constraint files that requests may name."
        ),
    ] = None,
    check_only: Annotated[
        str | None,
        typer.Option(
            "--check-only",
            metavar="RULES",
            help="Serve no model, only checks of texts (POST /v1/check), by this constraint file or those of a folder.",
        ),
    ] = None,
    always: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A constraint of this folder, or catalogue:NAME, that every text must satisfy."
        ),
    ] = None,
    adapter: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Draw attempts from this adapter (folder or Hub id).")
    ] = None,
    dtype: Dtype = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on; default: 127.0.0.1.")] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Port to listen on; default: 8000; 0: any free one.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Maximum attempts in one batch; default: 32.")] = None,
    keys: _Keys = None,
    allow_code: AllowCode = False,
    verbose: Verbose = 0,
) -> None:
    """Serve a model over HTTP, with OpenAI's API and vLLM's extensions.

    Every text satisfies the constraints of its request: response_format, structured_outputs, or any constraint in the
    field "guardwrap". After SIGTERM or Ctrl-C, running requests are completed first.
    """
    missing = [name for name in ("fastapi", "uvicorn", "prometheus_client") if find_spec(name) is None]
    if missing:
        raise UsageError(f"guardwrap serve needs {missing[0]}, which is not installed: pip install 'guardwrap[serve]'")
    from guardwrap.serve.lifecycle import RequestLog, listen, run_server, url_of
    from guardwrap.serve.request_policy import policy_of
    from guardwrap.serve.routes import create_app
    from guardwrap.serve.server_settings import read_server_settings

    changes = known(
        {
            "model": model,
            "constraints": constraints,
            "check_only": check_only,
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
    policy = policy_of(settings)
    listening = listen(settings.host, settings.port)
    guarded = _loaded(settings) if settings.check_only is None else None
    app = create_app(guarded, settings, policy)  # loaded after what fails at once
    log = RequestLog()
    url = url_of(listening)
    if settings.keys is None and not _is_loopback(listening.getsockname()[0]):
        typer.echo("guardwrap: anyone who can reach this server can use it; to prevent this, give --keys", err=True)
    run_server(app, listening, lambda: typer.echo(f"guardwrap serves {settings.served_name} on {url}"), log)


def _loaded(settings: ServerSettings) -> GuardedGenerator:
    from guardwrap.serve.parsed_request import ANYTHING

    options = {name: getattr(settings, name) for name in ("adapter", "batch_size", "deterministic")}
    guarded = load_generator(settings.model, ANYTHING, images=settings.images, dtype=settings.dtype, **options)
    guarded.session.job({"seed": 0})  # test the model now, not with the first request
    return guarded


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback
