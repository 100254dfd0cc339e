// Rust: generic steps, a trait object, a closure, a panic that is caught.
//
// ladder_rs once | climb SECONDS. Symbols: rung_01 .. rung_06 inside crate `ladder_rs`.

use std::io::Write;
use std::time::{Duration, Instant};

// std::hint::black_box is younger than the compilers that this has to build with.
#[inline(always)]
fn black_box<T>(x: T) -> T {
    unsafe {
        let y = std::ptr::read_volatile(&x);
        std::mem::forget(x);
        y
    }
}

trait Climb {
    fn climb(&self, x: u64) -> u64;
}

struct Wide<const N: usize>([u64; N]);

#[inline(never)]
fn rung_top(x: u64) -> u64 {
    let mut y = x;
    for i in 0..black_box(20u64) {
        y = black_box(y.wrapping_mul(3).wrapping_add(i));
    }
    y
}

#[inline(never)]
fn rung_06(x: u64, fail: bool) -> u64 {
    if black_box(fail) {
        std::panic::panic_any(x);
    }
    let pad = black_box([x; 12]);
    rung_top(x) ^ pad[3]
}

#[inline(never)]
fn rung_05<F: Fn(u64) -> u64>(x: u64, f: F) -> u64 {
    let pad = black_box([x; 3]);
    f(x + 1) ^ pad[1]
}

impl<const N: usize> Climb for Wide<N> {
    #[inline(never)]
    fn climb(&self, x: u64) -> u64 {
        let copy = black_box(self.0);
        rung_05(x, |y| black_box(rung_06(y, false)) + 1).wrapping_add(copy[N - 1])
    }
}

#[inline(never)]
fn rung_04(x: u64, climber: &dyn Climb) -> u64 {
    black_box(climber.climb(x)) ^ 4
}

#[inline(never)]
fn rung_03(x: u64) -> u64 {
    let small = Wide([x; 4]);
    let large = Wide([x; 100]);
    black_box(rung_04(x, &small)) ^ black_box(rung_04(x, &large))
}

#[inline(never)]
fn rung_02(x: u64) -> u64 {
    let caught = std::panic::catch_unwind(|| black_box(rung_06(x, true)));
    black_box(rung_03(x)) ^ u64::from(caught.is_err())
}

#[inline(never)]
fn rung_01(x: u64) -> u64 {
    let words: Vec<String> = (0..5).map(|i| format!("{i}{x}")).collect();
    black_box(rung_02(x)) ^ words.join(",").len() as u64
}

fn main() {
    std::panic::set_hook(Box::new(|_| {}));
    let arguments: Vec<String> = std::env::args().collect();
    let mut x = black_box(rung_01(1));
    if arguments.len() < 3 {
        return;
    }
    let end = Instant::now() + Duration::from_secs(arguments[2].parse().unwrap());
    println!("ready");
    std::io::stdout().flush().unwrap();
    while Instant::now() < end {
        for _ in 0..1000 {
            x = rung_01(x);
        }
    }
    black_box(x);
}
