// A program with a known call graph: each function is named after what it is, and `spin` is the only leaf that works.
"use strict";

let sink = 0;

function spin(n) {
  let x = n | 1;
  for (let i = 0; i < n; i++) x = (Math.imul(x, 1103515245) + 12345) & 0x7fffffff;
  sink ^= x;
  return x;
}

function one(n) {
  return spin(n) + 1;
}

function two(n) {
  return one(n) + spin(n);
}

function three(n) {
  return two(n) + 1;
}

function recurse(depth, n) {
  return depth ? recurse(depth - 1, n) + 1 : three(n);
}

function thrower(n) {
  if (spin(n) >= 0) throw new Error("on purpose");
  return 0;
}

function catcher(n) {
  try {
    return thrower(n);
  } catch (error) {
    return spin(n) + error.message.length;
  }
}

class Circle {
  area(n) {
    return spin(n) + 1;
  }
}

class Square {
  surface(n) {
    return spin(n) + 2;
  }
}

function virtual(n) {
  return new Circle().area(n) + new Square().surface(n);
}

function makeClosure(n) {
  return function closure(m) {
    return spin(n) + m;
  };
}

function closures(n) {
  return makeClosure(n)(1);
}

function allocate(n) {
  let list = null;
  for (let i = 0; i < n; i++) list = { next: list, closure: () => i };
  return spin(n) + (list ? list.closure() : 0);
}

function compare(a, b) {
  spin(40);
  return a - b;
}

function sort(n) {
  const numbers = [];
  for (let i = 0; i < 24; i++) numbers.push((i * 7919 + n) % 101);
  return numbers.sort(compare)[0];
}

function mapped(x) {
  return spin(200) + x;
}

function map() {
  return [1, 2, 3, 4, 5, 6].map(mapped).length;
}

function replaced(text) {
  spin(200);
  return text;
}

function replace() {
  return "a-b-c-d".replace(/[a-d]/g, replaced).length;
}

async function later(n) {
  await null;
  return resumed(n);
}

function resumed(n) {
  return spin(n);
}

function all(n) {
  recurse(8, n);
  catcher(n);
  virtual(n);
  closures(n);
  allocate(n);
  sort(n);
  map();
  replace();
}

async function main() {
  console.log("ready");
  for (;;) {
    all(2000);
    await later(2000);
    await new Promise(setImmediate);
  }
}

main();
