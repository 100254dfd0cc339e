/* A recursion of 1,000 frames; each frame's CFA takes 6,901 operations to compute. It waits at its end. */
        .text
        .globl  main
        .type   main, @function
main:   .cfi_startproc
        sub     $8, %rsp
        .cfi_def_cfa_offset 16
        mov     $1, %edi
        lea     ready(%rip), %rsi
        mov     $6, %edx
        call    write
        mov     $1000, %edi
        call    dear
        xor     %eax, %eax
        add     $8, %rsp
        .cfi_def_cfa_offset 8
        ret
        .cfi_endproc
        .size   main, . - main

        .type   dear, @function
dear:   .cfi_startproc
        sub     $8, %rsp
        /* DW_CFA_def_cfa_expression, 6,902 bytes: DW_OP_breg7 16, then DW_OP_nop */
        .cfi_escape 0x0f, 0xf6, 0x35, 0x77, 0x10
        .rept   6900
        .cfi_escape 0x96
        .endr
        dec     %edi
        jz      1f
        call    dear
        add     $8, %rsp
        ret
1:      call    pause
        add     $8, %rsp
        ret
        .cfi_endproc
        .size   dear, . - dear
        .section .rodata
ready:  .ascii  "ready\n"
        .section .note.GNU-stack, "", @progbits
