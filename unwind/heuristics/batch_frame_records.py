"""Frame records, followed for many samples at once: the common case of heuristics/frame_pointers.py, its specification.

follow_records() steps the samples whose record passes all checks. The others (a pc that is not a return address, a
record that fails a check) are left to heuristics/frame_pointers.py, one by one.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from pyprof.model.arch import Arch
from pyprof.unwind.batch_step import Lanes, Words, load_words
from pyprof.unwind.return_address_check import SpaceCode

_WORD = (1 << 64) - 1


def follow_records(
    lanes: Lanes, which: npt.NDArray[np.int64], words: Words, arch: Arch, code: SpaceCode
) -> npt.NDArray[np.int64]:
    """Unwind samples by the frame records that their frame pointers point to.

    Args:
        lanes: Current frames of the samples; those that are stepped are replaced by their callers.
        which: Indexes into lanes of the samples to step.
        words: The stack copies as words.
        arch: The architecture.
        code: The code of the address space.

    Returns:
        Indexes into lanes of the samples that were stepped.
    """
    chain = arch.chain
    which = which[lanes.fp_known[which] & ~lanes.exact[which]]
    if chain is None or chain.base != arch.fp or chain.ra_in_next or chain.cfa_off is None or not chain.sp_known:
        return which[:0]
    if not len(which):
        return which[:0]
    some = lanes.select_lanes(which)
    base, mask = some.fp, np.uint64(arch.mask)
    following, out, misaligned, _ = load_words(base + np.uint64(chain.next_off & _WORD), some, words, mask)
    ra, ra_out, ra_misaligned, _ = load_words(base + np.uint64(chain.ra_off & _WORD), some, words, mask)
    pc = ra & np.uint64(arch.pc_mask & ~arch.pac_mask)
    plain = (base >= some.sp) & (base & np.uint64(arch.word - 1) == 0) & (base != 0) & (pc != 0)
    plain &= ~(out | misaligned | ra_out | ra_misaligned) & ((following > base) | (following == 0))
    plain &= code.mask_return_addresses(pc) & code.mask_possible(some.pc - np.uint64(1))

    done: npt.NDArray[np.int64] = which[plain]
    cfa = base[plain] + np.uint64(chain.cfa_off & _WORD) & mask
    inside = cfa - some.base[plain] <= some.last[plain] + np.uint64(arch.word)
    lanes.top[done] = np.where(inside, np.maximum(some.top[plain], cfa), some.top[plain])
    lanes.pc[done], lanes.sp[done], lanes.fp[done] = pc[plain], cfa, following[plain]
    lanes.lr_known[done] = False
    return done
