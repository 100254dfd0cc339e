#!/usr/bin/env bash
# build_fixtures.sh [DIR]: build every SFrame fixture afresh, from the sources in fixtures/ into DIR (default: fixtures/).
#
# NAME.so.gz or NAME.o.gz: what a real producer made. NAME.txt: what objdump --sframe of the same producer says of it.
# Toolchains come from private Debian roots (tests/tools/roots, which makes those that are missing); needs root, apt and
# the host's gcc.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
src=$here/fixtures
out=$(mkdir -p "${1:-$src}" && cd "${1:-$src}" && pwd)
tools=$here/../../tools
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"

declare -A root
for suite in bookworm trixie sid; do root[$suite]=$("$tools/roots" $suite); done

in_root() { local suite=$1; shift; "$tools/debroot" run "${root[$suite]}" "$@"; }

keep() {  # keep SUITE OBJDUMP FILE: the listing beside the file
  in_root "$1" "$2" --sframe=.sframe "$3" >"$out/${3%.*}.txt"
  gzip -9nc "$3" >"$out/$3.gz"
}

link() {  # link SUITE TRIPLET NAME SOURCE ENDIAN [LD OPTION...]
  in_root "$1" "$2-as" ${5:+-E$5} --gsframe "$4" -o "$3.o" 2>/dev/null
  in_root "$1" "$2-ld" ${5:+-E$5} -shared -z noseparate-code --hash-style=gnu "${@:6}" "$3.o" -o "$3.so" 2>/dev/null
  keep "$1" "$2-objdump" "$3.so"
}

x86=x86_64-linux-gnu arm=aarch64-linux-gnu s390=s390x-linux-gnu
cp "$src"/*.s .
gcc -O2 -fomit-frame-pointer -mavx -fPIC -fno-stack-protector -S "$src/code.c" -o code.s

for version in v1:bookworm v2:trixie v3:sid; do
  suite=${version#*:} version=${version%:*}
  link $suite $x86 $version-x86_64 x86_64.s ""
  link $suite $x86 $version-x86_64-v3 x86_64-v3.s ""
  link $suite $x86 $version-code code.s ""
  link $suite $x86 $version-ibt x86_64.s "" -z ibtplt
  link $suite $arm $version-aarch64 aarch64.s ""
  link $suite $arm $version-aarch64-v3 aarch64-v3.s ""
  link $suite $arm $version-aarch64-code code-aarch64.s ""
done
link trixie $arm v2-aarch64_be aarch64.s B
link sid $arm v3-aarch64_be aarch64.s B
link sid $arm v3-aarch64_be-code code-aarch64.s B
link sid $s390 v3-s390x s390x.s ""
link sid $s390 v3-s390x-code code-s390x.s ""

# a relocatable file: unsorted, the starts of functions are relocations
in_root sid $x86-as --gsframe x86_64.s -o v3-relocatable.o 2>/dev/null
keep sid $x86-objdump v3-relocatable.o
# LLVM 22 writes V2 with PC-relative starts, which no GNU ld merges: gold links it as bytes, without segment
for source in x86_64 x86_64-v3 code; do
  in_root sid llvm-mc-22 -triple $x86 --filetype=obj --gsframe $source.s -o llvm-$source.o 2>/dev/null
  in_root bookworm $x86-ld.gold -shared --hash-style=gnu llvm-$source.o -o llvm-$source.so
  keep sid $x86-objdump llvm-$source.so
done
cp llvm-x86_64.o llvm-relocatable.o
keep sid $x86-objdump llvm-relocatable.o
