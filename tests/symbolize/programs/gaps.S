# Functions with gaps, aliases, labels, parts without a size.
        .text
        .globl sized, alias_global, unsized, last_unsized, outer, inner_entry
        .weak alias_weak, a_alias_weak
        .type sized, @function
sized:
alias_global:
alias_weak:
a_alias_weak:
alias_local:
        .fill 16, 1, 0x90
        .size sized, 16
        .size alias_global, 16
        .size alias_weak, 16
        .size alias_local, 16
        .type alias_global, @function
        .type alias_weak, @function
        .type a_alias_weak, @function
        .fill 16, 1, 0xcc          # a gap: nobody's code
        .type unsized, @function
unsized:
        .fill 16, 1, 0x90          # up to the next symbol
        .type outer, @function
outer:
        .fill 8, 1, 0x90
label_inside:                      # no function of its own
        .fill 8, 1, 0x90
        .type inner_entry, @function
inner_entry:                       # an entry with a size, inside outer
        .fill 8, 1, 0x90
        .size inner_entry, 8
        .fill 8, 1, 0x90
        .size outer, 32
        .type last_unsized, @function
last_unsized:
        .fill 32, 1, 0x90          # up to the end of the section
        .section .data
        .globl data_object
data_object:
        .quad 1
        .section .note.GNU-stack, "", @progbits
