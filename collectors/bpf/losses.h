/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/* Why something of a sample is missing: one counter each. Made of collectors/bpf/ring_buffer_records.py. */
enum reason {
	SAMPLED, /* a record was submitted */
	RING_FULL, /* no room for the record */
	NO_USER_MODE, /* a kernel thread, or no registers */
	STACK_UNREADABLE, /* pages of the stack could not be read: never touched, or swapped out */
	STACK_CUT, /* longer than MOST_STACK */
	STACK_END_GUESSED, /* the list of mappings was locked */
	NO_THREAD_STATE, /* of an interpreter's process: the thread has none */
	FRAME_UNREADABLE, /* of an interpreter */
	TOO_MANY_FRAMES, /* more than MOST_FRAMES */
	OVER_BUDGET, /* the run took longer than MOST_RUN_NS: frames and stack end where it was then */
	WAIT_LOST, /* no room for the end of a wait, or for its thread in the table: only in the sums, or nowhere */
	NO_STACK_OF_WAIT, /* its thread waits so often that not each wait is copied, or there was no room for it */
	ARRIVAL_MISSED, /* a thread leaves its processor, and the program was not called when it came */
	REASONS
};
