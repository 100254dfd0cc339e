function fib(n){ return n < 2 ? n : fib(n-1)+fib(n-2); }
function hot(){ let s=0; for(let i=0;i<1e6;i++) s+=i%7; return s; }
console.log("ready");
for(;;){ fib(25); hot(); }
