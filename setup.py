"""Find the packages, and build a wheel for one machine.

The top-level folders of a checkout have shorter names than the packages that they hold.

A wheel has the native objects of one machine: that of the variable PYPROF_MACHINE, or this one. They need no libc, so
that one wheel serves all of them and each Python. A wheel for another machine has no objects and the tag `any`.
"""

import os
import platform
import tempfile
from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

FOLDERS = {
    "pyprof": "profiler",
    "pyprof_start": "start",
    "pyprof.unwind": "unwind",
    "pyprof.collectors": "collectors",
    "pyprof.interpreters": "interpreters",
    "pyprof.exporters": "exporters",
}
ASSETS = ["pyprof.exporters.assets", "pyprof.fleet.server.assets"]
"""Packages without Python code: the files of the two pages."""
MACHINES = ("x86_64", "aarch64")
"""Machines for which there are native objects. Their names contain the machine: walk.x86_64.so."""
PLATFORMS = ("manylinux_2_17", "manylinux2014", "musllinux_1_1")
"""Platforms on which the objects of a machine can be loaded (PEP 600, PEP 656)."""
MACHINE = os.environ.get("PYPROF_MACHINE") or platform.machine()


class BuildForMachine(build_py):
    """Copies the package without the native objects of other machines. An editable installation has all of them."""

    def find_data_files(self, package: str, src_dir: str) -> list[str]:
        found: list[str] = super().find_data_files(package, src_dir)
        others = () if self.editable_mode else tuple(f".{machine}." for machine in MACHINES if machine != MACHINE)
        return [path for path in found if not any(other in Path(path).name for other in others)]


class WheelForMachine(bdist_wheel):
    """Makes a wheel of the platform-dependent kind if there are objects for the machine."""

    def run(self) -> None:
        if MACHINE in MACHINES:
            self.root_is_pure = False
            self.distribution.has_ext_modules = lambda: True  # so that the files go where libraries belong
        # setuptools keeps the files of a build, and the next one, for another machine, would find them
        with tempfile.TemporaryDirectory() as folder:
            self.reinitialize_command("build", build_base=folder)
            self.bdist_dir = str(Path(folder, "wheel"))
            super().run()

    def get_tag(self) -> tuple[str, str, str]:
        platforms = [f"{each}_{MACHINE}" for each in PLATFORMS] if MACHINE in MACHINES else ["any"]
        return "py3", "none", ".".join(platforms)


modules = {name: Path(folder).rglob("__init__.py") for name, folder in FOLDERS.items()}
packages = [
    ".".join([name, *found.parent.relative_to(FOLDERS[name]).parts]) for name in FOLDERS for found in modules[name]
]
setup(
    package_dir=FOLDERS,
    packages=sorted([*packages, *ASSETS]),
    cmdclass={"build_py": BuildForMachine, "bdist_wheel": WheelForMachine},
)
