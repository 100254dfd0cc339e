"""The programs that are compiled for the guests: (compiler, source, flags) by name and machine."""

from __future__ import annotations

X86, A64, A32 = "gcc", "aarch64-linux-gnu-gcc", "arm-linux-gnueabihf-gcc"
PLAIN = ("-O2", "-fomit-frame-pointer")
NO_TABLES = ("-fno-asynchronous-unwind-tables", "-fno-unwind-tables")
SIGNED = "-mbranch-protection=standard"

PROGRAMS_OF_GUEST: dict[str, dict[str, tuple[str, ...]]] = {
    "x86_64": {
        "ladder": (X86, "ladder.c", *PLAIN),
        "ladder_debug_frame": (X86, "ladder.c", *PLAIN, "-g", *NO_TABLES),
        "altstack": (X86, "ladder_altstack.c", *PLAIN),
        "sleepers": (X86, "c_sleepers.c", "-O1"),
    },
    "aarch64": {
        "ladder": (A64, "ladder.c", *PLAIN),
        "ladder_signed": (A64, "ladder.c", *PLAIN, SIGNED),
        "ladder_debug_frame": (A64, "ladder.c", *PLAIN, "-g", *NO_TABLES, SIGNED),
        "ladder_fp": (A64, "ladder.c", "-O2", "-fno-omit-frame-pointer", "-DFRAME_POINTERS", *NO_TABLES, SIGNED),
        "ladder_sframe": (
            A64,
            "ladder.c",
            "-O2",
            "-fno-omit-frame-pointer",
            "-DFRAME_POINTERS",
            "-Wa,--gsframe",
            SIGNED,
        ),
        "ladder_a32": (A32, "ladder.c", *PLAIN, "-marm", "-funwind-tables", "-static"),
        "ladder_t32": (A32, "ladder.c", *PLAIN, "-mthumb", "-funwind-tables", "-static"),
        "altstack": (A64, "ladder_altstack.c", *PLAIN, SIGNED),
        "sleepers": (A64, "c_sleepers.c", "-O1"),
        "sleepers_a32": (A32, "c_sleepers.c", "-O1", "-funwind-tables", "-static"),
    },
}
