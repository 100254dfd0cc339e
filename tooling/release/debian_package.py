"""Build Debian packages of pyprof, which need only the Python of their suite.

A package holds a virtual environment in /usr/lib/pyprof with pyprof and all packages that it needs. The user's PATH
gets one command, pyprof, and systemd one unit, which is started only if the administrator enables it.

    python tooling/release/debian_package.py WHEEL OUT SUITE...
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.metadata import distributions
from pathlib import Path

from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

HERE = Path(__file__).parent / "debian"
SUITES = {"bookworm": "3.11", "trixie": "3.13"}
"""Debian suites for which packages are built, with the minor version of CPython in each."""
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
"""Debian's names of the supported machines, by the names that `uname -m` prints."""
HOME = "usr/lib/pyprof"
CONFIG = "/etc/pyprof/agent.toml"
PLATFORMS = ("manylinux_2_28", "manylinux_2_17", "manylinux2014", "manylinux_2_12")


def install_packages(packages: Sequence[str], version: str, machine: str, site: Path) -> None:
    """Install packages and their dependencies for another version of CPython, from wheels only."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--target", str(site)]
    command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", version]
    for abi in (f"cp{version.replace('.', '')}", "abi3", "none"):
        command += ["--abi", abi]
    for platform in PLATFORMS:
        command += ["--platform", f"{platform}_{machine}"]
    subprocess.run([*command, *packages], check=True)
    shutil.rmtree(site / "bin")  # console scripts of the packages are not for the user's PATH


def make_environment(root: Path, version: str) -> None:
    """Make the folder with the installed packages a virtual environment that uses the suite's Python, with the command
    pyprof.
    """
    home = root / HOME
    (home / "bin").mkdir()
    (home / "bin" / "python3").symlink_to(f"/usr/bin/python{version}")
    (home / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\n")
    command = root / "usr/bin/pyprof"
    command.parent.mkdir(parents=True)
    command.write_text(f"#!/{HOME}/bin/python3 -I\nfrom pyprof_start import main\n\nmain()\n")
    command.chmod(0o755)


def write_unit(root: Path, site: Path) -> None:
    """Write the agent's systemd unit, which starts the command that the package installs."""
    command = ["/usr/bin/pyprof", "agent", "--config", CONFIG, "--log", "json"]
    text = f"from pyprof.fleet.systemd import agent_unit; print(agent_unit({command}, [], True, 'pyprof'), end='')"
    env = {**os.environ, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1"}
    unit = subprocess.run([sys.executable, "-c", text], check=True, capture_output=True, text=True, env=env).stdout
    folder = root / "usr/lib/systemd/system"
    folder.mkdir(parents=True)
    (folder / "pyprof-agent.service").write_text(unit)


def bill_of_materials(site: Path, others: Sequence[PackageURL] = ()) -> str:
    """Return a software bill of materials as CycloneDX JSON: the bundled Python distributions and other packages."""
    bom = Bom()
    bundled = sorted(distributions(path=[str(site)]), key=lambda found: found.name.lower())
    named = [(each.name, PackageURL("pypi", name=each.name.lower(), version=each.version)) for each in bundled]
    for name, package in [*named, *((each.name, each) for each in others)]:
        kind, reference = ComponentType.LIBRARY, str(package)
        bom.components.add(Component(name=name, version=package.version, type=kind, purl=package, bom_ref=reference))
    return str(JsonV1Dot6(bom).output_as_string(indent=2))


def version_of(site: Path) -> str:
    (found,) = (each.version for each in distributions(path=[str(site)]) if each.name == "pyprof-live")
    return found


def build(wheel: Path, suite: str, machine: str, out: Path, compression: str = "xz") -> Path:
    """Build the Debian package for a suite and return its path. The bill of materials is written next to the package.

    Args:
        wheel: Wheel of pyprof for the machine.
        machine: Name of the machine as `uname -m` prints it.
        out: Folder for the package.
        compression: Compression of the package as `dpkg-deb -Z` takes it.
    """
    version = SUITES[suite]
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        site = root / HOME / f"lib/python{version}/site-packages"
        install_packages([str(wheel)], version, machine, site)
        make_environment(root, version)
        write_unit(root, site)
        doc = root / "usr/share/doc/pyprof"
        doc.mkdir(parents=True)
        shutil.copy(HERE / "copyright", doc)
        shutil.copytree(Path(__file__).parents[2] / "LICENSES", doc / "LICENSES")
        materials = bill_of_materials(site)
        (doc / "sbom.cdx.json").write_text(materials)
        control = root / "DEBIAN"
        control.mkdir()
        size = sum(path.lstat().st_size for path in root.rglob("*")) // 1024
        major, minor = version.split(".")
        values = {
            "version": f"{version_of(site)}~{suite}",
            "machine": MACHINES[machine],
            "python": version,
            "next_python": f"{major}.{int(minor) + 1}",
            "size": str(size),
        }
        (control / "control").write_text((HERE / "control").read_text().format_map(values))
        for script in ("postinst", "prerm", "postrm"):
            shutil.copy(HERE / script, control)
            (control / script).chmod(0o755)
        for path in [root, *root.rglob("*")]:
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
        name = f"pyprof_{values['version']}_{values['machine']}"
        package = out / f"{name}.deb"
        command = ["dpkg-deb", "--root-owner-group", f"-Z{compression}", "--build", str(root), str(package)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        (out / f"{name}.cdx.json").write_text(materials)
    return package


def main(wheel: str, out: str, *suites: str) -> None:
    (machine,) = (each for each in MACHINES if each in wheel)
    Path(out).mkdir(parents=True, exist_ok=True)
    for suite in suites or SUITES:
        print(build(Path(wheel).resolve(), suite, machine, Path(out).resolve()))


if __name__ == "__main__":
    main(*sys.argv[1:])
