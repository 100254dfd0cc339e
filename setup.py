"""Find the packages. The top-level folders of a checkout have shorter names than the packages that they hold."""

from pathlib import Path

from setuptools import setup

FOLDERS = {
    "pyprof": "profiler",
    "pyprof_start": "start",
    "pyprof.unwind": "unwind",
    "pyprof.collectors": "collectors",
    "pyprof.interpreters": "interpreters",
    "pyprof.exporters": "exporters",
}
ASSETS = ["pyprof.exporters.assets", "pyprof.server.assets"]
"""Packages without Python code: the files of the two pages."""

modules = {name: Path(folder).rglob("__init__.py") for name, folder in FOLDERS.items()}
packages = [
    ".".join([name, *found.parent.relative_to(FOLDERS[name]).parts]) for name in FOLDERS for found in modules[name]
]
setup(package_dir=FOLDERS, packages=sorted([*packages, *ASSETS]))
