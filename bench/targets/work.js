// node work.js SECONDS  ->  {"work": rounds done}: JSON, sorting, regular expressions, typed arrays.
const end = Date.now() + 1000 * Number(process.argv[2] || 5);
let work = 0;
function makeRecords(seed) {
  const records = [];
  for (let i = 0; i < 300; i++) records.push({ id: (seed * 31 + i * 17) % 1009, name: `record ${i}`, tags: ["a", "b", String(i)] });
  return records;
}
function wordsOf(text) {
  return text.match(/[a-z]+ \d+/g).length;
}
function sums(seed) {
  const values = new Float64Array(4096).map((_, i) => Math.sin(i + seed));
  return values.reduce((sum, value) => sum + value, 0);
}
function round(seed) {
  const records = makeRecords(seed);
  records.sort((a, b) => a.id - b.id);
  const text = JSON.stringify(records);
  return JSON.parse(text).length + wordsOf(text) + sums(seed);
}
let keep = 0;
while (Date.now() < end) keep += round(work++);
console.log(JSON.stringify({ work, keep }));
