"""Shutdown of a server: running requests finish or are ended after a while, and new ones get an error."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from guardwrap.errors import UsageError
from guardwrap.serve.lifecycle import listen, url_of
from tests.serve.fixtures_server import ASKED, ROOT, Server, furnish, wait_until


@pytest.fixture
def server(tmp_path):
    running = Server(furnish(tmp_path))
    yield running
    running.end()


@pytest.mark.slow
def test_sigterm_under_load(server):
    with httpx.Client(base_url=server.url, timeout=60) as http, ThreadPoolExecutor() as pool:

        def ask(name, **more):
            body = {**ASKED, "guardwrap": {"constraint": name}, **more}
            return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)

        assert ask("has-a").status_code == 200
        endless, late = pool.submit(ask, "endless", stream=True), pool.submit(ask, "late")
        wait_until(http, running=2)
        server.process.send_signal(signal.SIGTERM)
        for _ in range(100):
            told = ask("has-a")
            if told.status_code == 503:
                break
        assert told.status_code == 503
        assert told.headers["connection"] == "close"
        assert told.json()["error"]["code"] == "shutting_down"
        assert http.get("/health").status_code == 503
        assert late.result().status_code == 200
        last = endless.result().text.strip().splitlines()[-1]
        error = json.loads(last.removeprefix("data: "))["error"]
        assert error["code"] == "shutting_down"
    assert server.process.wait(timeout=30) == 0
    assert "Traceback" not in server.log.read_text()
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{server.url}/health")


@pytest.mark.slow
def test_a_second_signal_ends_it_at_once(server):
    with ThreadPoolExecutor() as pool, httpx.Client(base_url=server.url, timeout=60) as http:
        body = {**ASKED, "guardwrap": {"constraint": "endless"}}
        asked = pool.submit(httpx.post, f"{server.url}/v1/chat/completions", json=body, timeout=60)
        wait_until(http, running=1)
        server.process.send_signal(signal.SIGINT)
        while http.get("/health").status_code != 503:
            pass
        assert not asked.done()
        server.process.send_signal(signal.SIGINT)
        assert asked.result().status_code == 503
    assert server.process.wait(timeout=30) == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_it_loads_ends_it_at_once(tmp_path, number):
    """The first process of a container has no default handler: without one of ours, SIGTERM would be ignored."""
    folder = furnish(tmp_path)
    (folder / "slow.py").write_text("import time\nopen('loading', 'w').close()\ntime.sleep(100)\n")
    # Children of a shell's background job ignore SIGINT, as those of a terminal do not.
    begin = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); from guardwrap.cli import main"
    command = [sys.executable, "-c", f"{begin}; main()", "serve", "--config", "serve.yaml", "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True) as process:
        while not (folder / "loading").exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(number)
        _, stderr = process.communicate(timeout=30)
    ending = {signal.SIGTERM: ("guardwrap: terminated\n", 143), signal.SIGINT: ("guardwrap: interrupted\n", 130)}
    assert (stderr, process.returncode) == ending[number]


def test_a_port_that_is_taken():
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        assert url_of(taken) == f"http://127.0.0.1:{port}"
        with pytest.raises(UsageError, match=rf"port {port}: .*another --host or --port"):
            listen("127.0.0.1", port)
    with pytest.raises(UsageError, match=r"cannot listen on 192\.0\.2\.1"):
        listen("192.0.2.1", 0)


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
def test_ipv6():
    try:
        listening = listen("::1", 0)
    except UsageError:
        pytest.skip("no IPv6 here")
    with listening:
        assert url_of(listening).startswith("http://[::1]:")


def test_connections_do_not_wait_to_send_a_body_after_its_head():
    with listen("127.0.0.1", 0) as listening, socket.create_connection(listening.getsockname()):
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
