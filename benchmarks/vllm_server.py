"""A vLLM server on this machine's CPU with the embedded model and a small adapter.

Started by the tests of ``make test-vllm`` and by ``over_vllm.py``. Run on its own, it serves until interrupted::

    python benchmarks/vllm_server.py .venv-vllm/bin/vllm
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig

from guardwrap import Endpoint
from guardwrap.adapters import attach, save_adapter
from guardwrap.models.embedded_model import load_local

NAME, ADAPTER = "smollm2", "small"
READY = 600.0
"""Seconds until it answers, at most: loading takes one or two minutes."""


def adapted(model: Any) -> Any:
    """Return the model with a small adapter of random numbers, the same each time."""
    config = LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj", "down_proj"], task_type="CAUSAL_LM")
    made = attach(model, config, seed=1)
    chance = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in made.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=chance) * 0.02)
    return made


LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The layers that adapters change: else the head is one, and vLLM 0.32 ends with an error where one batch has
texts that are drawn and texts that are scored."""

ON_A_CPU = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
}
"""Variables of vLLM's environment."""


@contextmanager
def model_folder() -> Iterator[str]:
    """Write the embedded model to ``model`` in a folder, and an adapter to ``adapter``."""
    with tempfile.TemporaryDirectory() as folder:
        model, tokenizer = load_local()
        model.save_pretrained(f"{folder}/model")
        tokenizer.save_pretrained(f"{folder}/model")
        save_adapter(f"{folder}/adapter", adapted(model))
        yield folder


@contextmanager
def in_process() -> Iterator[tuple[Any, str]]:
    """Return vLLM's ``LLM`` of the embedded model, in a Python that has vLLM, and the folder of an adapter."""
    os.environ.update({**ON_A_CPU, "OMP_NUM_THREADS": "1"})
    from vllm import LLM

    with model_folder() as folder:
        options: dict[str, Any] = {"dtype": "float32", "max_model_len": 1024, "max_num_seqs": 32, "enforce_eager": True}
        options |= {"enable_lora": True, "max_lora_rank": 16, "lora_target_modules": list(LAYERS)}
        yield LLM(f"{folder}/model", disable_log_stats=False, **options), f"{folder}/adapter"


@contextmanager
def serving(binary: str, *options: str, threads: int = 1) -> Iterator[tuple[str, int]]:
    """Run a server.

    Parameters
    ----------
    binary
        vLLM's command.
    options
        More of its options.
    threads
        Of its own computing.

    Yields
    ------
    str
        Where its routes begin.
    int
        Its process, the leader of a group of its own.
    """
    with model_folder() as folder, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        command = [binary, "serve", f"{folder}/model", "--served-model-name", NAME, "--dtype", "float32"]
        command += ["--max-model-len", "1024", "--max-num-seqs", "32", "--enforce-eager"]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        command += ["--lora-target-modules", *LAYERS]
        command += ["--enable-lora", "--max-lora-rank", "16", "--lora-modules", f"{ADAPTER}={folder}/adapter", *options]
        settings = {**ON_A_CPU, "OMP_NUM_THREADS": str(threads)}
        log = Path(folder, "log")
        with log.open("wb") as written:
            server = subprocess.Popen(
                command, env={**os.environ, **settings}, stdout=written, stderr=written, start_new_session=True
            )
        try:
            _wait(f"http://127.0.0.1:{port}/health", server, log)
            yield f"http://127.0.0.1:{port}/v1", server.pid
        finally:
            _stop(server)


def _wait(health: str, server: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + READY
    while time.monotonic() < until and server.poll() is None:
        try:
            with urllib.request.urlopen(health, timeout=5):
                return
        except OSError:
            time.sleep(1)
    raise RuntimeError(f"vLLM did not start; the end of its log:\n{log.read_text(errors='replace')[-4000:]}")


def _stop(server: subprocess.Popen[bytes]) -> None:
    """End it and what it has started: its engine is a process of its own."""
    for ask, patience in ((signal.SIGTERM, 20), (signal.SIGKILL, 20)):
        with suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(server.pid, ask)
            server.wait(timeout=patience)


def figures(at: Any) -> dict[str, float]:
    """Return vLLM's own figures, summed over labels; of an ``LLM`` only those that are needed."""
    if not isinstance(at, Endpoint):
        values = {one.name: one.value for one in at.get_metrics() if hasattr(one, "value")}
        return {
            "vllm:generation_tokens_total": values["vllm:generation_tokens"],
            "vllm:num_requests_running": at.llm_engine.get_num_unfinished_requests(),  # its gauge rests between steps
        }
    found: dict[str, float] = {}
    with urllib.request.urlopen(at.base_url.removesuffix("/v1") + "/metrics", timeout=30) as answer:
        for line in answer.read().decode().splitlines():
            if not line.startswith("#") and line.strip():
                name, _, value = line.rpartition(" ")
                name = name.partition("{")[0]
                found[name] = found.get(name, 0.0) + float(value)
    return found


if __name__ == "__main__":
    for ending in (signal.SIGINT, signal.SIGTERM):  # a shell lets what runs in its background ignore the first
        signal.signal(ending, signal.default_int_handler)
    with serving(*sys.argv[1:]) as (where, process):
        print(where, process, flush=True)
        with suppress(KeyboardInterrupt):
            signal.pause()
