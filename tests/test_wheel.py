"""What a plain ``pip install`` gets, from the wheel and from the sdist."""

import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CHECK = ROOT / ".github" / "release" / "check_wheel.py"


def built(target: str, source: Path, out: Path) -> Path:
    """Build a wheel or an sdist, and return its path."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(out)]
    subprocess.run(build, check=True, cwd=source, capture_output=True)
    (path,) = out.iterdir()
    return path


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("wheel", ROOT, tmp_path_factory.mktemp("wheel"))


def packed(wheel: Path) -> dict[str, bytes]:
    """Return the files in a wheel, except its metadata."""
    with zipfile.ZipFile(wheel) as archive:
        return {name: archive.read(name) for name in archive.namelist() if ".dist-info/" not in name}


def expected() -> dict[str, bytes]:
    """Return the files that a wheel must have: the package, and the catalogue within it."""
    folders = {"guardwrap": "guardwrap", "constraints": "guardwrap/_content/constraints"}
    folders["adapters"] = "guardwrap/_content/adapters"
    return {
        f"{place}/{path.relative_to(ROOT / folder).as_posix()}": path.read_bytes()
        for folder, place in folders.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_a_wheel_contains_the_package_and_the_catalogue(wheel: Path) -> None:
    files = packed(wheel)
    assert files == expected()
    assert {"guardwrap/py.typed", "guardwrap/serve/page.html", "guardwrap/_content/adapters/dragon/card.yaml"} <= {
        *files
    }


@pytest.mark.slow
def test_an_sdist_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    sdist = built("sdist", ROOT, tmp_path / "sdist")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path / "source", filter="data")
    (source,) = (tmp_path / "source").iterdir()
    assert not {".venv", ".git"} & {path.name for path in source.iterdir()}
    again = built("wheel", source, tmp_path / "again")
    assert again.name == wheel.name
    assert packed(again) == packed(wheel)


@pytest.mark.slow
def test_the_catalogue_is_found_in_a_wheel(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    code = (
        "from guardwrap import catalogue; from guardwrap.constraints.files.constraint_data import catalogue_names; "
        "from guardwrap.support.files import content; "
        "names = catalogue_names(); "
        "assert len(names) >= 8, names; [catalogue(name) for name in names]; print(content('constraints'))"
    )
    env = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-c", code], check=True, cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.stdout.startswith(str(site))


def environment_with(wheel: Path, folder: Path) -> tuple[Path, Path]:
    """Return Python and the packages of a new environment: the wheel, and what this environment has besides."""
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin" / "python"
    where = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(where, check=True, capture_output=True, text=True).stdout.strip())
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))
    return python, site


@pytest.mark.slow
def test_an_installed_wheel_works(wheel: Path, tmp_path: Path) -> None:
    python, site = environment_with(wheel, tmp_path / "environment")
    done = subprocess.run([python, CHECK], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"{site / 'guardwrap'} works\n"), done.stderr
    (site / "guardwrap" / "_content" / "constraints" / "no-urls.yaml").unlink()
    done = subprocess.run([python, CHECK], capture_output=True, text=True)
    assert done.returncode == 1
    assert "no-urls" in done.stderr


def test_negative_control_the_checkout_is_no_installed_wheel(wheel: Path, tmp_path: Path) -> None:
    python, site = environment_with(wheel, tmp_path / "environment")
    (site / "guardwrap").rename(site / "moved")
    (site / "guardwrap.pth").write_text(str(ROOT))
    done = subprocess.run([python, CHECK], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (1, f"not an installed wheel: {ROOT / 'guardwrap'}\n")
