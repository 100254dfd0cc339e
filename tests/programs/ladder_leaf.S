/* Leaves in assembly, called by ladder_signal.c. */

	.text

/* No frame, no pushes; counts rdi down. */
	.globl	leaf_bare
	.type	leaf_bare, @function
leaf_bare:
	.cfi_startproc
	xor	%eax, %eax
1:	add	%rdi, %rax
	dec	%rdi
	jnz	1b
	ret
	.cfi_endproc
	.size	leaf_bare, .-leaf_bare

/* Uses the red zone and moves rsp about, every step described. */
	.globl	leaf_moving
	.type	leaf_moving, @function
leaf_moving:
	.cfi_startproc
	mov	%rdi, -8(%rsp)
1:	push	%rbx
	.cfi_adjust_cfa_offset 8
	.cfi_rel_offset %rbx, 0
	sub	$40, %rsp
	.cfi_adjust_cfa_offset 40
	mov	%rdi, %rbx
	mov	%rbx, 8(%rsp)
	add	$40, %rsp
	.cfi_adjust_cfa_offset -40
	pop	%rbx
	.cfi_adjust_cfa_offset -8
	.cfi_restore %rbx
	dec	%rdi
	jnz	1b
	mov	$1, %eax
	ret
	.cfi_endproc
	.size	leaf_moving, .-leaf_moving

/* The caller's stack pointer is kept in a register that no frame pointer rule knows. */
	.globl	leaf_r11
	.type	leaf_r11, @function
leaf_r11:
	.cfi_startproc
	mov	%rsp, %r11
	.cfi_def_cfa_register %r11
	sub	$256, %rsp
	and	$-64, %rsp
1:	mov	%rdi, (%rsp)
	dec	%rdi
	jnz	1b
	mov	%r11, %rsp
	.cfi_def_cfa_register %rsp
	mov	$2, %eax
	ret
	.cfi_endproc
	.size	leaf_r11, .-leaf_r11

/* The CFA stands in memory, as OpenSSL's assembly has it: cfa = *(rsp + 32) + 8. */
	.globl	leaf_deref
	.type	leaf_deref, @function
leaf_deref:
	.cfi_startproc
	mov	%rsp, %rax
	.cfi_def_cfa_register %rax
	sub	$40, %rsp
	and	$-32, %rsp
	mov	%rax, 32(%rsp)
	.cfi_escape 0x0f,0x05,0x77,0x20,0x06,0x23,0x08
1:	dec	%rdi
	jnz	1b
	mov	32(%rsp), %rax
	.cfi_def_cfa %rax, 8
	mov	%rax, %rsp
	.cfi_def_cfa_register %rsp
	mov	$3, %eax
	ret
	.cfi_endproc
	.size	leaf_deref, .-leaf_deref

/* The return address is popped into a register and jumped to. */
	.globl	leaf_popped
	.type	leaf_popped, @function
leaf_popped:
	.cfi_startproc
	pop	%rdx
	.cfi_adjust_cfa_offset -8
	.cfi_register %rip, %rdx
1:	dec	%rdi
	jnz	1b
	mov	$4, %eax
	jmp	*%rdx
	.cfi_endproc
	.size	leaf_popped, .-leaf_popped

	.section .note.GNU-stack,"",@progbits
