"""Ruby (CRuby) as an interpreters.base.Interpreter: detected by its exported symbols, its functions are not read.

Source: include/ruby/version.h and version.c export the text ruby_version. In vm.c, ruby_current_vm_ptr (2.5 and later)
or ruby_current_vm (before) points to the virtual machine as soon as one exists.
"""

from __future__ import annotations

from collections.abc import Iterator

from pyprof.interpreters.base import Detected, Interpreter, LiveProcess
from pyprof.interpreters.detection_symbols import Wanted
from pyprof.model.address_space import AddressSpace, Module

_VERSION = b"ruby_version"
_MACHINES = (b"ruby_current_vm_ptr", b"ruby_current_vm")
_WANTED = Wanted(_VERSION + b"\0", tuple(name + b"\0" for name in _MACHINES))
_LONGEST = 16


class Ruby(Interpreter):
    """The interpreter CRuby of any version; only its exported symbols are used."""

    language = "Ruby"
    evaluators = ("rb_vm_exec", "ruby_run_node")

    def detect(self, process: LiveProcess) -> Detected | None:
        for module in _candidates(process.space):
            known = self.recording.symbols.find_first(process.space, [module], _WANTED)
            if known is None:
                continue
            found = {symbol.name: symbol.avma for symbol in known[1].symbols}
            machine = next((found[name] for name in _MACHINES if name in found), 0)
            if machine and not any(process.space.read(machine, 8)):
                continue  # Ruby has not started yet
            version = process.space.read(found[_VERSION], _LONGEST).partition(b"\0")[0].decode("ascii", "replace")
            return Detected(self.language, version, module.path, unread="pyprof does not read them")
        return None


def _candidates(space: AddressSpace) -> Iterator[Module]:
    """Yield the modules that may hold CRuby: the program itself and all modules with "ruby" in their name."""
    files = [module for module in space.modules if module.has_file]
    return (module for nth, module in enumerate(files) if nth == 0 or "ruby" in module.name)
