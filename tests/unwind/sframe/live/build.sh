#!/usr/bin/env bash
# build.sh v1|v2|v3|llvm DIR [GCC OPTION...]: the program and its library, whose only unwind table is that version.
#
# One compilation (host's gcc), then that producer's assembler and linker from a private root (tests/tools/roots). .eh_frame is
# removed at the end. gold links LLVM's objects, one a file: no GNU ld merges them.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
tools=$here/../../../tools
x86=x86_64-linux-gnu
version=$1
mkdir -p "$2" && cd "$2"

suite() { local root; root=$("$tools/roots" "$1"); shift; "$tools/debroot" run "$root" "$@"; }
assemble() { suite "$producer" $x86-as --gsframe "$1.s" -o "$1.o"; }
link() { suite "$producer" $x86-ld "$@"; }
case $version in
v1) producer=bookworm ;;
v2) producer=trixie ;;
v3) producer=sid ;;
llvm)
  assemble() { suite sid llvm-mc-22 -triple $x86 --filetype=obj --gsframe "$1.s" -o "$1.o"; }
  link() { suite bookworm $x86-ld.gold "$@"; }
  ;;
*) echo "no such version: $version" >&2; exit 2 ;;
esac

drap=(); [[ $version == v3 ]] && drap=(-DDRAP)
for source in library program; do
  gcc -O2 -fomit-frame-pointer -fno-optimize-sibling-calls -fno-stack-protector -fPIC "${drap[@]}" "${@:3}" \
    -S "$here/$source.c" -o $source.s
done
cp "$here/start.s" start.s
if [[ $version != v3 ]]; then  # nothing before V3 can say that _start has no caller
  sed -i '/\.cfi_/d' start.s
fi
if [[ $version == llvm ]]; then  # one SFrame section a file
  cat start.s >>program.s
  assemble program
  objects=(program.o)
else
  assemble start
  assemble program
  objects=(start.o program.o)
fi
assemble library
link -shared --hash-style=gnu -soname library.so library.o -o library.so
link -pie --hash-style=gnu -dynamic-linker /lib64/ld-linux-x86-64.so.2 -rpath '$ORIGIN' "${objects[@]}" library.so \
  -o program
for file in program library.so; do
  mv $file $file.full
  objcopy --remove-section .eh_frame --remove-section .eh_frame_hdr $file.full $file 2>/dev/null
done
