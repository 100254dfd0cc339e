/* Windows code that runs until it is killed: built by clang for Windows, without frame pointers. */

typedef unsigned u32;
volatile u32 stay = 1, sink;

__declspec(noinline) u32 leaf(u32 n)
{
	volatile u32 pad[4];
	pad[n & 3] = n;
	while (stay)
		sink += pad[0];
	return pad[1];
}

__declspec(noinline) u32 middle(u32 n, u32 m, u32 k)
{
	volatile u32 pad[20];
	pad[n & 7] = m;
	u32 r = leaf(n + k);
	return r * m + pad[2] + k;
}

__declspec(noinline) u32 __stdcall outer(u32 n, u32 m)
{
	u32 r = middle(n, m, 3);
	return r + middle(m, n, r);
}

__declspec(dllexport) u32 entry(u32 n)
{
	return outer(n, 7) + 1;
}
