"""What docs/serve.md shows runs as written, and is so."""

import re

from typer.testing import CliRunner

from guardwrap.cli import app as cli
from guardwrap.serve.settings import Limits, read_settings
from tests.serve.small import ROOT

PAGE = ROOT / "docs" / "serve.md"


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), re.M | re.S)


def test_the_examples_of_the_page_run(server, capsys):
    """On the small world, which has few letters and another name."""
    source = "\n".join(blocks("python"))
    for there, here in {
        "http://127.0.0.1:8000": server.url, '"local"': '"tiny"', '["yes", "no"]': '["ab", "c"]', "score": "a",
        "max_tokens=20": "max_tokens=12, seed=1", "Is tea a drink?": "ab",
    }.items():  # fmt: skip
        assert there in source
        source = source.replace(there, here)
    exec(compile(source, "serve.md", "exec"), {"__name__": "page"})
    first, *others = capsys.readouterr().out.splitlines()
    assert first.endswith("exactly g")
    assert others[0].startswith("a=")
    assert others[1] in ("ab", "c")


def test_the_settings_of_the_page_are_what_they_say(tmp_path):
    (block,) = blocks("yaml")
    (tmp_path / "serve.yaml").write_text(block)
    found = read_settings(tmp_path / "serve.yaml")
    assert found.limits == Limits()
    assert list(found.adapters) == ["tales"]
    (line,) = (line for line in PAGE.read_text().splitlines() if line.startswith("    guardwrap serve"))
    told = CliRunner().invoke(cli, ["serve", "--help"]).output
    assert all(option in told for option in re.findall(r"--\S+", line))
