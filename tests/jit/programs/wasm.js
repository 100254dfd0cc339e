"use strict";
// A WebAssembly module with two imports. Its functions: 2 loops, 3 calls 2 and back into JavaScript, 4 calls 3, 5 is unused.
const text = (s) => [s.length, ...Buffer.from(s)];
const section = (id, bytes) => { const n = bytes.length; return [id, (n & 127) | 128, n >> 7, ...bytes]; };
const vec = (items) => [items.length, ...items.flat()];
const body = (locals, code) => { const b = [...vec(locals), ...code, 0x0b]; return [b.length, ...b]; };
const I32 = 0x7f;
const types = vec([[0x60, 1, I32, 1, I32], [0x60, 0, 0]]);
const imports = vec([[...text('e'), ...text('tick'), 0, 1], [...text('e'), ...text('back'), 0, 0]]);
const functions = vec([[0], [0], [0], [0]]);
const exports_ = vec([[...text('top'), 0, 4]]);
// spin(n): local 1 = acc; loop { acc = acc * 31 + n; n -= 1; br_if n } acc
const spin = body([[1, I32]], [0x03, 0x40, 0x20, 1, 0x41, 31, 0x6c, 0x20, 0, 0x6a, 0x21, 1, 0x20, 0, 0x41, 1, 0x6b, 0x22, 0, 0x0d, 0, 0x0b, 0x20, 1]);
const outer = body([], [0x20, 0, 0x10, 2, 0x20, 0, 0x10, 1, 0x6a]);
const top_ = body([], [0x20, 0, 0x10, 3, 0x20, 0, 0x10, 3, 0x6a]);
const never = body([], [0x20, 0]);
const code = vec([spin, outer, top_, never]);
const bytes = [0, 0x61, 0x73, 0x6d, 1, 0, 0, 0, ...section(1, types), ...section(2, imports), ...section(3, functions), ...section(7, exports_), ...section(10, code)];
const module_ = new WebAssembly.Module(new Uint8Array(bytes));
function back(n) { let s = 0; for (let i = 0; i < n; i++) s = (s * 7 + i) | 0; return s; }
const { top } = new WebAssembly.Instance(module_, { e: { tick() {}, back } }).exports;
function main() { for (let i = 0; i < 3; i++) top(10); console.log('ready'); for (;;) top(20000); }
main();
