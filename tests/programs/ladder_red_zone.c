/* A function whose caller's stack pointer stands below its own: only a copy of the red zone has it (OpenSSL's SHA-512).

   ladder_red_zone spin SECONDS */

#include "ladder.h"

void leaf(void);

__asm__(".globl leaf\n"
	".type leaf, @function\n"
	"leaf:\n"
	"	.cfi_startproc\n"
	"	mov %rsp, %rax\n"
	"	.cfi_def_cfa_register rax\n"
	"	sub $256, %rsp\n"
	"	and $-64, %rsp\n"
	"	mov %rax, -8(%rsp)\n"
	"	.cfi_escape 0x0f, 0x05, 0x77, 0x78, 0x06, 0x23, 0x08\n" /* cfa = *(rsp - 8) + 8 */
	"	xor %eax, %eax\n"
	"	mov $10000000, %ecx\n"
	"1:	dec %ecx\n"
	"	jnz 1b\n"
	"	mov -8(%rsp), %rsp\n"
	"	.cfi_def_cfa rsp, 8\n"
	"	ret\n"
	"	.cfi_endproc\n"
	"	.size leaf, . - leaf\n");

RUNG word outer(word x)
{
	char room[512]; /* so that both are on one page */
	room[0] = x;
	__asm__ volatile("" : : "r"(room) : "memory");
	for (;;)
		leaf();
	return x;
}

int main(int argc, char **argv)
{
	if (argc < 3)
		return 2;
	end_after(argv[2]);
	say_ready();
	return outer(rounds) & 1;
}
