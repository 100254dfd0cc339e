/* SPDX-License-Identifier: MIT OR GPL-2.0-only */
/*
 * Reports of processes that have ended: their processor time, and the values that the agent's rules match.
 *
 * It runs where the kernel frees a task. All threads of the process have left their processors by then: its time is final.
 */
typedef unsigned int u32;
typedef unsigned long long u64;

#define SEC(name) __attribute__((section(name), used))
#define KERNEL_THREAD 0x00200000 /* PF_KTHREAD */
#define MAX_GENERATIONS 12       /* ancestors that are read at most */

static u64 (*ktime_get_ns)(void) = (void *)5;
static void *(*map_lookup)(void *map, const void *key) = (void *)1;
static long (*probe_read_kernel)(void *to, u32 size, const void *from) = (void *)113;
static long (*ringbuf_output)(void *ring, void *data, u64 size, u64 flags) = (void *)130;

struct map {
	u32 type;
	u32 key_size;
	u32 value_size;
	u32 max_entries;
	u32 flags;
};
enum { ARRAY = 2, RINGBUF = 27, NO_WAKEUP = 1 };

struct map SEC("maps") ring = {RINGBUF, 0, 0, 1 << 20, 0};
/* Number of ended processes whose report had no room in the ring. */
struct map SEC("maps") lost = {ARRAY, 4, 8, 1, 0};

/* Offsets of fields in the running kernel's structures, which user space sets before the load. */
volatile const u32 tgid_of_task = 0;
volatile const u32 pid_of_task = 0;
volatile const u32 flags_of_task = 0;
volatile const u32 name_of_task = 0;
volatile const u32 start_of_task = 0;
volatile const u32 parent_of_task = 0;
volatile const u32 signal_of_task = 0;
volatile const u32 cgroups_of_task = 0;
volatile const u32 credentials_of_task = 0;
volatile const u32 run_ns_of_task = 0;
volatile const u32 run_ns_of_signal = 0;
volatile const u32 waited_user_of_signal = 0;
volatile const u32 waited_kernel_of_signal = 0;
volatile const u32 uid_of_credentials = 0;

struct process_end {
	u64 at_ns;
	u64 start_ns; /* since boot */
	u64 run_ns;
	u64 waited_ns; /* of the children for which it has waited, and of theirs */
	u32 pid;
	u32 parent;
	u32 uid;
	u32 shares_cgroup; /* 1 if it is in the control groups of its parent */
	u32 grandparent;   /* pid of the parent's parent if that is in the same control groups, else 0 */
	u32 eldest;        /* pid of the farthest ancestor such that all up to it are in the same control groups, else 0 */
	char name[16];
	char parent_name[16];
};

struct raw_tracepoint {
	void *task;
};

#define READ(to, from) probe_read_kernel(&(to), sizeof(to), (from))

SEC("raw_tp/sched_process_free")
int ended(struct raw_tracepoint *context)
{
	void *task = context->task, *parent = 0, *above = 0, *signal = 0, *credentials = 0;
	u64 cgroups = 0, cgroups_of_parent = 0, run_ns = 0, kernel_ns = 0;
	u32 pid = 0, flags = 0, zero = 0;
	struct process_end end = {};
	if (READ(pid, task + pid_of_task) || READ(end.pid, task + tgid_of_task) || READ(flags, task + flags_of_task))
		return 0;
	if (pid != end.pid || flags & KERNEL_THREAD)
		return 0;
	/* The account of the process lacks what its last thread ran after its parent had waited for it. */
	READ(end.run_ns, task + run_ns_of_task);
	if (!READ(signal, task + signal_of_task) && !READ(run_ns, signal + run_ns_of_signal) && run_ns > end.run_ns)
		end.run_ns = run_ns;
	if (signal && !READ(end.waited_ns, signal + waited_user_of_signal) && !READ(kernel_ns, signal + waited_kernel_of_signal))
		end.waited_ns += kernel_ns;
	end.at_ns = ktime_get_ns();
	READ(end.start_ns, task + start_of_task);
	READ(end.name, task + name_of_task);
	READ(cgroups, task + cgroups_of_task);
	if (!READ(credentials, task + credentials_of_task))
		READ(end.uid, credentials + uid_of_credentials);
	if (!READ(parent, task + parent_of_task)) {
		READ(end.parent, parent + tgid_of_task);
		READ(end.parent_name, parent + name_of_task);
		READ(cgroups_of_parent, parent + cgroups_of_task);
		end.shares_cgroup = cgroups && cgroups == cgroups_of_parent;
	}
	/* A parent that is a short process, too, is gone when user space reads this. */
	end.eldest = end.shares_cgroup ? end.parent : 0;
	for (int generation = 0; generation < MAX_GENERATIONS && end.eldest > 1; generation++) {
		cgroups_of_parent = 0;
		if (READ(above, parent + parent_of_task) || above == parent || READ(cgroups_of_parent, above + cgroups_of_task) ||
		    cgroups_of_parent != cgroups || READ(end.eldest, above + tgid_of_task))
			break;
		if (!generation)
			end.grandparent = end.eldest;
		parent = above;
	}
	if (ringbuf_output(&ring, &end, sizeof(end), NO_WAKEUP)) {
		u64 *count = map_lookup(&lost, &zero);
		if (count)
			__sync_fetch_and_add(count, 1);
	}
	return 0;
}

char _license[] SEC("license") = "Dual MIT/GPL";
