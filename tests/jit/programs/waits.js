// A program that sleeps below known functions: main calls outer, outer calls pause.
"use strict";

const cell = new Int32Array(new SharedArrayBuffer(4));

function pause(milliseconds) {
  return Atomics.wait(cell, 0, 0, milliseconds);
}

function outer(milliseconds) {
  return [pause(milliseconds)].length;
}

function main() {
  console.log("ready");
  for (;;) outer(20);
}

main();
