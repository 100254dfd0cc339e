"""Ruby (CRuby) as an interpreters.base.Interpreter: recognised by its exported symbols, its functions are not read.

Source: include/ruby/version.h and version.c: the text ruby_version is exported; vm.c: ruby_current_vm_ptr (2.5 and
later), ruby_current_vm (before) points to the virtual machine as soon as there is one.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyprof.diagnostics import Diagnostics
from pyprof.interpreters.base import Detected, Interpreter, LiveProcess
from pyprof.interpreters.symbols import defined_symbols
from pyprof.model.modules import AddressSpace, Module
from pyprof.objfile.images import ImageStore

_VERSION = b"ruby_version"
_MACHINES = (b"ruby_current_vm_ptr", b"ruby_current_vm")
_LONGEST = 16


class Ruby(Interpreter):
    """Of any version: nothing but exported symbols is looked at."""

    language = "Ruby"
    evaluators = ("rb_vm_exec", "ruby_run_node")

    def detect(self, process: LiveProcess) -> Detected | None:
        images = ImageStore(Diagnostics())
        for module in _candidates(process.space):
            found = _symbols(process.space, module, images)
            if _VERSION not in found:
                continue
            machine = next((found[name] for name in _MACHINES if name in found), 0)
            if machine and not any(process.space.read(machine, 8)):
                continue  # it has not begun
            version = process.space.read(found[_VERSION], _LONGEST).partition(b"\0")[0].decode("ascii", "replace")
            return Detected(self.language, version, module.path, unread="pyprof does not read them")
        return None


def _candidates(space: AddressSpace) -> Iterator[Module]:
    """The program, and what has the name in its own."""
    files = [module for module in space.modules if module.has_file]
    return (module for nth, module in enumerate(files) if nth == 0 or "ruby" in module.name)


def _symbols(space: AddressSpace, module: Module, images: ImageStore) -> dict[bytes, int]:
    """Name -> avma. Raises FormatError."""
    image = images.image(space, module.start)
    if image is None or image.file.address_size != 8:
        return {}
    names = [name + b"\0" for name in (_VERSION, *_MACHINES)]
    return {symbol.name: symbol.value + image.bias for symbol in defined_symbols(image.file, names[0], names[1:])}
