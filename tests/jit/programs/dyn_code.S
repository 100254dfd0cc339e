/* Code that dyn.c copies to where no file describes it. Each function takes a link in rdi and calls its first member.
   The labels are the places that directives speak of: NAME_1 is the first instruction, and so on. */
    .macro begin name
    .globl \name, \name\()_end
    .p2align 4
\name:
    .endm
    .macro at name, number
    .globl \name\()_\number
\name\()_\number:
    .endm

    .text
/* sp moves by odd steps, nothing keeps it; rbp is no frame pointer */
begin plain
at plain, 1
    push %rbx
at plain, 2
    push %rbp
at plain, 3
    sub $0x58, %rsp
at plain, 4
    mov %rdi, %rbx
    mov $0x77, %ebp
    call *(%rbx)
    addl $1, (%rsp)
at plain, 5
    add $0x58, %rsp
at plain, 6
    pop %rbp
at plain, 7
    pop %rbx
at plain, 8
    ret
plain_end:

/* the frame pointer keeps sp, which is then aligned */
begin aligned
at aligned, 1
    push %rbp
at aligned, 2
    mov %rsp, %rbp
at aligned, 3
    push %rbx
at aligned, 4
    sub $0x38, %rsp
    and $-64, %rsp
    mov %rdi, %rbx
    call *(%rbx)
    addl $1, (%rsp)
    lea -8(%rbp), %rsp
    pop %rbx
    pop %rbp
at aligned, 5
    ret
aligned_end:

/* r12 keeps sp; rbx is kept in r13 meanwhile and used for something else */
begin kept
at kept, 1
    push %r12
at kept, 2
    push %r13
at kept, 3
    mov %rsp, %r12
at kept, 4
    mov %rbx, %r13
at kept, 5
    mov %rdi, %rbx
    sub $0x48, %rsp
    and $-32, %rsp
    call *(%rbx)
    mov %r13, %rbx
at kept, 6
    mov %r12, %rsp
at kept, 7
    pop %r13
at kept, 8
    pop %r12
at kept, 9
    ret
kept_end:

/* an early return in the middle, behind it the frame goes on */
begin early
at early, 1
    push %rbx
at early, 2
    sub $0x30, %rsp
at early, 3
    mov %rdi, %rbx
    cmpl $0, 24(%rdi)
    jne early_cold
at early, 4
    call *(%rbx)
    addl $1, (%rsp)
at early, 5
    add $0x30, %rsp
at early, 6
    pop %rbx
at early, 7
    ret
early_cold:
at early, 8
    movl $0, 24(%rbx)
    mov %rbx, %rdi
    call *(%rbx)
    jmp early_4
at early, 9
early_end:

/* no frame of its own */
begin leaf
    mov $300, %ecx
    dec %ecx
    jnz .-2
    jmp *(%rdi)
leaf_end:

/* a clone of this is described as an alias of it */
begin original
    .cfi_startproc
    push %rbx
    .cfi_def_cfa_offset 16
    .cfi_offset %rbx, -16
    sub $0x90, %rsp
    .cfi_def_cfa_offset 160
    mov %rdi, %rbx
    call *(%rbx)
    addl $1, (%rsp)
    add $0x90, %rsp
    .cfi_def_cfa_offset 16
    pop %rbx
    .cfi_def_cfa_offset 8
    ret
    .cfi_endproc
original_end:
    .section .note.GNU-stack, "", @progbits
