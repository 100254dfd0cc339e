// node clocked_service.js FILE: a service that writes down its own clock (clocked_service.py), until it is killed.
const fs = require("fs");
const out = fs.openSync(process.argv[2], "a");
const rows = Array.from({ length: 200 }, (_, n) => ({ id: (n * 17) % 101, name: `record ${n}` }));
function answer() {
  return JSON.stringify([...rows].sort((a, b) => a.id - b.id)).match(/record \d+/g).length;
}
function turn() {
  answer();
  const used = process.cpuUsage();
  fs.writeSync(out, `${process.hrtime.bigint()} ${1000 * (used.user + used.system)}\n`);
}
setInterval(turn, 20);
