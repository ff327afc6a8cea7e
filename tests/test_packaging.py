"""Every way of building ships every file once, under one name, and nothing heavy on import."""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path, PurePosixPath

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import adjointlab
from tests.tracked import tracked

# One process builds and installs; more would only do it again.
pytestmark = pytest.mark.mpi_skip

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("primitives", "layers")
BUILT_FROM = (
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "LICENSE",
    "MANIFEST.in",
    "README.md",
    "conftest.py",
    "mkdocs.yml",
    "pyproject.toml",
    "setup.py",
)
BESIDE = ("benchmarks", "ci", "docs", "examples", "tests")
"""Folders that a source distribution has and a wheel has not."""


def run(*command: str | Path, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """A command in a clean directory, without what this test run put in the environment."""
    keep = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "PYTEST"))}
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env=keep | {"PYTHONDONTWRITEBYTECODE": "1"} | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def python(code: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-c", code, cwd=cwd, **environment)


def checked(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 0, result.stdout
    return result.stdout


def checkout(target: Path) -> Path:
    """A copy of what the build of a wheel reads, links kept as links."""
    target.mkdir()
    for name in BUILT_FROM:
        shutil.copy(ROOT / name, target / name)
    for folder in ("adjointlab", *ROOMS):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / folder, target / folder, symlinks=True, ignore=ignored)
    return target


def modules() -> set[str]:
    """Every Python file of the package, seen through the links."""
    found = {
        (Path(folder).relative_to(ROOT) / name).as_posix()
        for folder, _, names in os.walk(ROOT / "adjointlab", followlinks=True)
        for name in names
        if name.endswith(".py")
    }
    assert {f"adjointlab/{room}/__init__.py" for room in ROOMS} < found
    return found


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = checkout(tmp_path_factory.mktemp("packaging") / "checkout")
    for folder in BESIDE:
        shutil.copytree(ROOT / folder, target / folder, ignore=shutil.ignore_patterns("__pycache__"))
    return target


@pytest.fixture(scope="module")
def built(source: Path) -> Path:
    """A source distribution, the wheel built from it, and in `direct/` the wheel built from the checkout."""
    build = (sys.executable, "-m", "build", "--no-isolation")
    checked(run(*build, "--outdir", source.parent / "dist", cwd=source))
    checked(run(*build, "--wheel", "--outdir", source.parent / "dist/direct", cwd=source))
    return source.parent / "dist"


def contents(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


@pytest.mark.parametrize("folder", [".", "direct"], ids=["from-sdist", "from-checkout"])
def test_wheel_holds_every_module_once_and_nothing_else(built: Path, folder: str) -> None:
    (wheel,) = (built / folder).glob("*.whl")
    names = contents(wheel)
    assert len(names) == len(set(names))
    assert {name for name in names if name.endswith(".py")} == modules()
    assert "adjointlab/py.typed" in names
    tops = {PurePosixPath(name).parts[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"adjointlab"}


def test_wheel_from_source_distribution_equals_wheel_from_checkout(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    (direct,) = (built / "direct").glob("*.whl")
    assert sorted(contents(wheel)) == sorted(contents(direct))


def test_source_distribution_holds_plain_files_once(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        members = tar.getmembers()
    assert [member.name for member in members if member.issym() or member.islnk()] == []
    names = ["/".join(PurePosixPath(member.name).parts[1:]) for member in members if member.isfile()]
    assert len(names) == len(set(names))
    assert {name for name in names if name.startswith("adjointlab/") and name.endswith(".py")} == modules()
    assert {"LICENSE", "README.md", "adjointlab/py.typed", "pyproject.toml", "setup.py"} < set(names)
    assert not [name for name in names if name.startswith(tuple(f"{room}/" for room in ROOMS))]


def test_source_distribution_passes_tests_of_its_own(built: Path, tmp_path: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    tests = ("tests/test_references.py", "tests/core/test_partition.py")
    checked(run(sys.executable, "-m", "pytest", "-q", *tests, cwd=unpacked, PYTHONPATH=str(unpacked)))


def test_source_distribution_holds_all_that_is_tracked(built: Path) -> None:
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as tar:
        names = {"/".join(PurePosixPath(name).parts[1:]) for name in tar.getnames()}
    wanted = {
        name
        for name in tracked()
        if not name.startswith((*(f"{room}/" for room in ROOMS), ".", "adjointlab/"))
    }
    assert {f"adjointlab/{room}/__init__.py" for room in ROOMS} < names
    assert wanted - names == set()


LOADS = """
import importlib.metadata, importlib.util, pathlib, sys
import adjointlab, adjointlab.layers, adjointlab.primitives
home = pathlib.Path({home!r}).resolve()
for module in (adjointlab, adjointlab.layers, adjointlab.primitives):
    assert pathlib.Path(module.__file__).absolute().is_relative_to(home / "adjointlab"), module.__file__
for name in {rooms!r}:
    assert importlib.util.find_spec(name) is None, name
(shipped,) = importlib.metadata.distributions(name="adjointlab", path=[{site!r}])
groups = sorted((point.group, point.name) for point in shipped.entry_points if point.load())
assert groups == [
    ("adjointlab.subjects", "layers"), ("adjointlab.subjects", "primitives"),
    ("console_scripts", "adjointlab"), ("pytest11", "adjointlab")
], groups
"""


def test_installed_wheel_imports_under_one_name(built: Path, tmp_path: Path) -> None:
    (wheel,) = built.glob("*.whl")
    site = tmp_path / "site"
    install = (sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps")
    checked(run(*install, "--target", site, wheel, cwd=tmp_path))
    code = LOADS.format(home=str(site), site=str(site), rooms=ROOMS)
    checked(python(code, tmp_path, PYTHONPATH=str(site)))


def test_editable_install_imports_under_one_name(source: Path, tmp_path: Path) -> None:
    prefix = tmp_path / "prefix"
    install = (
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-index",
        "--no-deps",
        "--ignore-installed",
    )
    checked(run(*install, "--no-build-isolation", "--prefix", prefix, "--editable", source, cwd=tmp_path))
    site = sysconfig.get_path("purelib", vars={"base": str(prefix), "platbase": str(prefix)})
    # Without `site`, this environment's own `.pth` files are not read, and its packages are added by hand.
    packages = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    begin = f"import site, sys; site.addsitedir({site!r}); sys.path += {packages!r}\n"
    code = LOADS.format(home=str(source), site=site, rooms=ROOMS)
    checked(run(sys.executable, "-S", "-c", begin + code, cwd=tmp_path))


@pytest.mark.parametrize("room", ROOMS)
def test_import_under_a_second_name_is_refused(room: str) -> None:
    result = python(f"import adjointlab.{room}, {room}", cwd=ROOT)
    assert result.returncode != 0
    assert f"ImportError: this package is adjointlab.{room}, but it was imported as {room!r}" in result.stdout


@pytest.mark.parametrize("room", ROOMS)
def test_checkout_without_symbolic_links_is_refused(room: str, tmp_path: Path) -> None:
    source = checkout(tmp_path / "checkout")
    link = source / "adjointlab" / room
    link.unlink()
    link.write_text(f"../{room}")
    result = run(sys.executable, "-m", "build", "--no-isolation", "--wheel", cwd=source)
    assert result.returncode != 0
    assert f"adjointlab/{room} must be a symbolic link to ../{room}, but it is a plain file" in result.stdout
    assert not list(source.rglob("*.whl"))


def test_using_a_primitive_loads_nothing_heavy() -> None:
    code = """
import importlib, pkgutil, sys
import adjointlab, adjointlab.primitives
for module in pkgutil.walk_packages(adjointlab.primitives.__path__, "adjointlab.primitives."):
    if ".primitives.subjects." not in module.name:
        importlib.import_module(module.name)
heavy = {"cupy", "hypothesis", "mpi4py", "pytest", "rich", "torch", "typer"} & set(sys.modules)
assert not heavy, f"importing the primitives loaded {sorted(heavy)}"
"""
    checked(python(code, cwd=ROOT))


def test_every_exported_name_resolves_and_is_typed() -> None:
    """The lazy table and the imports that type checkers see say the same."""
    tree = ast.parse((ROOT / "adjointlab/__init__.py").read_text())
    (block,) = (
        node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
    )
    typed = {
        alias.name: node.module
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    submodules = adjointlab._SUBMODULES.keys()
    assert sorted(typed) == sorted(adjointlab.__all__)
    assert {name: typed[name] for name in typed.keys() - submodules} == adjointlab._MODULES
    for name in adjointlab.__all__:
        assert getattr(adjointlab, name) is not None
    assert set(adjointlab.__all__) <= set(dir(adjointlab))
    assert len(set(dir(adjointlab))) == len(dir(adjointlab))
    with pytest.raises(AttributeError, match=re.escape("module 'adjointlab' has no attribute 'Worlds'")):
        adjointlab.Worlds  # noqa: B018


def test_every_dependency_is_pinned_within_its_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = (ROOT / "ci/constraints.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    pinned = {canonicalize_name(name): version for name, version in pins.items()}
    extras = project["optional-dependencies"]
    untested = {"gpu"}  # needs a GPU to install for
    wanted = [*project["dependencies"], *(line for name in extras.keys() - untested for line in extras[name])]
    for requirement in map(Requirement, wanted):
        version = pinned.get(canonicalize_name(requirement.name))
        assert version is not None, f"{requirement.name} is not pinned in ci/constraints.txt"
        assert requirement.specifier.contains(version), f"{requirement} does not admit the tested {version}"
