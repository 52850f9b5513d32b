"""What a plain ``pip install`` gets.

Covers ``environment/package_data.py`` too.
"""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_catalogue_is_found_in_a_wheel(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)]
    subprocess.run(build, check=True, cwd=ROOT, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
        names = archive.namelist()
    assert "guardwrap/py.typed" in names
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {"guardwrap"}
    code = (
        "from guardwrap import catalogue; from guardwrap.constraints.files.catalogue_files import catalogue_names; "
        "from guardwrap.environment.package_data import content; "
        "names = catalogue_names(); "
        "assert len(names) >= 8, names; [catalogue(name) for name in names]; print(content('constraints'))"
    )
    env = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.stdout.startswith(str(site))
