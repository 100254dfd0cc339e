/* A frame that nothing but CFI describes: odd size, rbp used for counting. */
    .text
    .globl made_even
    .type made_even, @function
made_even:
    .cfi_startproc
    push %rbp
    .cfi_def_cfa_offset 16
    .cfi_offset %rbp, -16
    sub $40, %rsp
    .cfi_def_cfa_offset 56
    mov $0x5a5a5a, %ebp
1:  add %rdi, %rbp
    dec %rdi
    jnz 1b
    mov %rbp, %rax
    add $40, %rsp
    .cfi_def_cfa_offset 16
    pop %rbp
    .cfi_def_cfa_offset 8
    .cfi_restore %rbp
    ret
    .cfi_endproc
    .size made_even, .-made_even
    .section .note.GNU-stack, "", @progbits
