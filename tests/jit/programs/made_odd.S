/* The same with another frame: .debug_frame only. */
    .cfi_sections .debug_frame
    .text
    .globl made_odd
    .type made_odd, @function
made_odd:
    .cfi_startproc
    push %rbp
    .cfi_def_cfa_offset 16
    .cfi_offset %rbp, -16
    sub $136, %rsp
    .cfi_def_cfa_offset 152
    mov $0x5a5a5a, %ebp
1:  add %rdi, %rbp
    dec %rdi
    jnz 1b
    mov %rbp, %rax
    add $136, %rsp
    .cfi_def_cfa_offset 16
    pop %rbp
    .cfi_def_cfa_offset 8
    .cfi_restore %rbp
    ret
    .cfi_endproc
    .size made_odd, .-made_odd
    .section .note.GNU-stack, "", @progbits
