// Every .cfi directive that GNU as knows on x86-64, for the readers of .eh_frame and .debug_frame. Linked, never run.
// Build: gcc -nostdlib -static -o cfi_directives cfi_directives.S
// -DFOR_LLVM leaves out an instruction at which llvm-dwarfdump 14 gives the whole section up.
        .cfi_sections .eh_frame, .debug_frame
        .text
        .globl _start
_start: .cfi_startproc
        .cfi_undefined rip
        nop
        .cfi_endproc

plain:  .cfi_startproc
        push %rbp
        .cfi_def_cfa_offset 16
        .cfi_offset rbp, -16
        mov %rsp, %rbp
        .cfi_def_cfa_register rbp
        push %rbx
        .cfi_rel_offset rbx, -8
        .cfi_remember_state
        pop %rbx
        .cfi_restore rbx
        pop %rbp
        .cfi_restore rbp
        .cfi_def_cfa rsp, 8
        ret
        .cfi_restore_state
        sub $64, %rsp
        .cfi_adjust_cfa_offset 64
        nop
        .cfi_endproc

rare:   .cfi_startproc
        nop
        .cfi_same_value r12
        nop
        .cfi_undefined r13
        nop
        .cfi_register r14, r15
        nop
        .cfi_val_offset r15, -32
        nop
        .cfi_offset xmm0, -48
        nop
        .cfi_val_offset rsp, 0
        nop
        .cfi_register rip, rcx
        nop
        .cfi_escape 0x2e, 0x10                          // GNU_args_size 16
        nop
#ifndef FOR_LLVM
        .cfi_escape 0x2f, 0x03, 0x02                    // GNU_negative_offset_extended rbx, 2
#endif
        nop
        .cfi_escape 0x11, 0x06, 0x7e                    // offset_extended_sf rbp, -2
        nop
        .cfi_escape 0x12, 0x07, 0x7c                    // def_cfa_sf rsp, -4
        nop
        .cfi_escape 0x13, 0x7b                          // def_cfa_offset_sf -5
        nop
        .cfi_escape 0x05, 0x08, 0x09                    // offset_extended r8, 9
        nop
        .cfi_escape 0x15, 0x09, 0x7d                    // val_offset_sf r9, -3
        nop
        .cfi_escape 0x06, 0x08                          // restore_extended r8
        nop
        .cfi_escape 0x00                                // nop
        nop
        .cfi_endproc

expressions:
        .cfi_startproc
        nop
        .cfi_escape 0x0f, 0x03, 0x76, 0x78, 0x06        // cfa = [rbp - 8]
        nop
        .cfi_escape 0x10, 0x06, 0x02, 0x76, 0x00        // rbp = [rbp]
        nop
        .cfi_escape 0x10, 0x03, 0x03, 0x76, 0x70, 0x06  // rbx = [[rbp - 16]]
        nop
        .cfi_escape 0x16, 0x0c, 0x03, 0x76, 0x68, 0x06  // r12 = [rbp - 24]
        nop
        .cfi_escape 0x16, 0x0d, 0x04, 0x77, 0x08, 0x23, 0x10  // r13 = rsp + 8 + 16
        nop
        .cfi_escape 0x0f, 0x0b, 0x77, 0x08, 0x80, 0x00, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22  // the PLT's
        nop
        .cfi_def_cfa rsp, 8
        nop
        .cfi_endproc

advances:
        .cfi_startproc
        .skip 0x3f
        .cfi_def_cfa_offset 16
        .skip 0x40
        .cfi_def_cfa_offset 24
        .skip 0x100
        .cfi_def_cfa_offset 32
        .skip 0x10000
        .cfi_def_cfa_offset 40
        nop
        .cfi_endproc

simple: .cfi_startproc simple
        .cfi_def_cfa rsp, 16
        .cfi_offset rip, -16
        nop
        .cfi_endproc

trampoline:
        .cfi_startproc
        .cfi_signal_frame
        .cfi_def_cfa_offset 160
        nop
        .cfi_endproc

other_column:
        .cfi_startproc
        .cfi_return_column rcx
        nop
        .cfi_offset rcx, -24
        nop
        .cfi_endproc

with_personality:
        .cfi_startproc
        .cfi_personality 0x1b, plain
        .cfi_lsda 0x1b, lsda
        push %rbx
        .cfi_def_cfa_offset 16
        .cfi_offset rbx, -16
        nop
        .cfi_endproc

        .section .rodata
lsda:   .long 0
