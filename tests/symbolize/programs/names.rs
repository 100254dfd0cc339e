// Symbols with generics, trait impls and closures, under either mangling.
use std::collections::HashMap;

trait Go {
    fn go(&self, x: u64) -> u64;
}

struct Holder<X>(X);

impl<X: Copy + Into<u64>> Go for Holder<X> {
    #[inline(never)]
    fn go(&self, x: u64) -> u64 {
        let times = |y: u64| y.wrapping_mul(self.0.into());
        (0..x).map(times).sum()
    }
}

impl<X> Drop for Holder<X> {
    #[inline(never)]
    fn drop(&mut self) {
        unsafe { std::ptr::read_volatile(&1u32) };
    }
}

fn main() {
    let mut all: HashMap<String, Box<dyn Go>> = HashMap::new();
    all.insert("a".into(), Box::new(Holder(3u32)));
    all.insert("b".into(), Box::new(Holder(3u8)));
    let sum: u64 = all.values().map(|go| go.go(10)).sum();
    println!("{sum}");
}
