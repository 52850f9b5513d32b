"""Settings of the documentation: ``make docs`` builds it into ``docs/_build``, offline, with warnings as errors."""

import re
import subprocess
import sys

import guardwrap

project = "guardwrap"
release = guardwrap.__version__
html_title = f"guardwrap {release}"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
templates_path: list[str] = []

html_theme = "furo"  # no font, script or picture comes from another host
html_static_path = ["_static"]
html_css_files = ["pages.css"]
html_copy_source = False
html_show_sphinx = html_show_copyright = False

# A link to a page or a heading that is not there is a warning, and so an error.
myst_heading_anchors = 3
highlight_language = "text"  # of indented blocks: command lines and what they print

# Docstrings are numpydoc's; they have no types, which come from the signatures.
napoleon_google_docstring = False
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
# autodoc imports as type checkers do, and so imported their pydantic models are refused.
autodoc_mock_imports = ["langchain_core", "llama_index"]
autodoc_type_aliases = {"ArrayLike": "ArrayLike"}
python_use_unqualified_type_names = True


def add_commands(app, page, source):
    """Put what ``guardwrap --help`` and its commands say on their page: typer writes it as Markdown."""
    if page != "reference/cli":
        return
    command = [sys.executable, "-m", "typer", "guardwrap.cli.typer_app", "utils", "docs", "--name", "guardwrap"]
    written = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    commands = re.split(r"^(?=## )", written, flags=re.MULTILINE)[1:]
    source[0] += "\n" + "".join(commands)


def setup(app):
    """Connect the above to the build."""
    app.connect("source-read", add_commands)
