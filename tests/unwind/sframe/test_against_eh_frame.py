"""Tests of SFrame against .eh_frame of the same files.

docs/unwind-tables.md explains each difference by its producer.
"""

from __future__ import annotations

import pytest

from tests.unwind.sframe.compare import differences
from tests.unwind.sframe.fixtures import NAMES, load

CALL = "cfa = sp + 8; fp = fp; ra = [cfa - 8]"

SIGNAL = [  # versions before V3 cannot express .cfi_signal_frame
    (CALL, f"{CALL}; signal"),
    ("cfa = sp + 24; fp = fp; ra = [cfa - 8]", "cfa = sp + 24; fp = fp; ra = [cfa - 8]; signal"),
]
RESTORE = [  # gas 2.40 to 2.44: .cfi_restore_state loses the last change before .cfi_remember_state
    ("cfa = sp + 16; fp = fp; ra = [cfa - 8]", "cfa = sp + 24; fp = [cfa - 24]; ra = [cfa - 8]"),
    ("cfa = sp + 624; fp = fp; ra = [cfa - 8]", "cfa = sp + 624; fp = [cfa - 24]; ra = [cfa - 8]"),
    ("cfa = sp + 70624; fp = fp; ra = [cfa - 8]", "cfa = sp + 70624; fp = [cfa - 24]; ra = [cfa - 8]"),
]
SILENT = [  # dropped silently before V3: .cfi_offset and .cfi_undefined of the return address, lost rbp
    (CALL, "cfa = sp + 8; fp = fp; ra = [cfa - 16]"),
    (CALL, "outermost"),
    (CALL, "cfa = sp + 8; fp = undefined; ra = [cfa - 8]"),
]
RA_REGISTER = ("cfa = sp; fp = fp; ra = [cfa - 8]", "cfa = sp; fp = fp; ra = rcx")
IBT_2_40 = [  # ld 2.40: rows of the PLT without IBT (two blocks), and those of PLT0 for the first of .plt.sec
    *[(CALL, "cfa = sp + 16; fp = fp; ra = [cfa - 8]")] * 2,
    ("cfa = sp + 16; fp = fp; ra = [cfa - 8]", CALL),
    ("cfa = sp + 24; fp = fp; ra = [cfa - 8]", CALL),
]
ARM_SIGNAL = ("cfa = fp; fp = [cfa]; ra = [cfa + 8]", "cfa = fp; fp = [cfa]; ra = [cfa + 8]; signal")
ARM_START = ("cfa = sp; fp = fp; ra = x30", "outermost")
ARM_FP_ONLY = ("cfa = sp + 16; fp = fp; ra = [cfa - 16]", "cfa = sp + 16; fp = [cfa - 16]; ra = x30")
LLVM_SIMPLE = ("cfa = fp; fp = fp; ra = [cfa - 8]", "no row")  # a row before the first .cfi_def_cfa
LLVM_FP_REGISTER = (CALL, "cfa = sp + 8; fp = rax; ra = [cfa - 8]")

EXPLAINED: dict[str, list[tuple[str, str]]] = {
    "v1-x86_64.so": RESTORE + SIGNAL,
    "v1-ibt.so": IBT_2_40 + RESTORE + SIGNAL,
    "v1-x86_64-v3.so": SILENT,
    "v1-aarch64.so": [ARM_SIGNAL],
    "v1-aarch64-v3.so": [ARM_START, ARM_FP_ONLY],
    "v2-x86_64.so": RESTORE + SIGNAL,
    "v2-ibt.so": RESTORE + SIGNAL,
    "v2-x86_64-v3.so": [RA_REGISTER, *SILENT],
    "v2-aarch64.so": [ARM_SIGNAL],
    "v2-aarch64_be.so": [ARM_SIGNAL],
    "v2-aarch64-v3.so": [ARM_START],
    "llvm-x86_64.so": [LLVM_FP_REGISTER, *SIGNAL],
    "llvm-x86_64-v3.so": [RA_REGISTER, *SILENT, LLVM_SIMPLE],
}


@pytest.mark.parametrize("name", [name for name in NAMES if name.endswith(".so")])
def test_rows_are_those_of_eh_frame_but_for_what_the_producer_is_known_to_lose(name: str) -> None:
    elf, arch = load(name)
    found = sorted((ours, theirs) for _, ours, theirs in differences(elf, arch))
    assert found == sorted(EXPLAINED.get(name, []))


def test_version_3_has_no_difference_to_explain() -> None:
    assert not [name for name in EXPLAINED if name.startswith("v3-")]
    assert len([name for name in NAMES if name.startswith("v3-")]) >= 8
