#!/usr/bin/env bash
# roots.sh: the private roots with the toolchains that write SFrame, below $PYPROF_TEST_ROOTS. Returns at once where they
# are there already. debroot needs root and apt.
set -euo pipefail
roots=${PYPROF_TEST_ROOTS:-/var/cache/pyprof-tests}
debroot=$(cd "$(dirname "$0")" && pwd)/../../tools/debroot
"$debroot" bookworm "$roots/bookworm" binutils binutils-aarch64-linux-gnu                       # 2.40: V1
"$debroot" trixie "$roots/trixie" binutils binutils-aarch64-linux-gnu                           # 2.44: V2
"$debroot" sid "$roots/sid" binutils binutils-aarch64-linux-gnu binutils-s390x-linux-gnu llvm-22 # 2.47: V3; V2 + PCREL
