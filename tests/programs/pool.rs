// Jobs in boxes for two threads, and some on the main thread; until standard input ends or for two minutes.
use std::collections::HashMap;
use std::io::Read;
use std::sync::{mpsc, Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

type Job = Box<dyn Fn(u64) -> u64 + Send + 'static>;

#[inline(never)]
fn crunch(seed: u64) -> u64 {
    let mut values: Vec<u64> = (0..4000u64).map(|i| i.wrapping_mul(seed) ^ (i << 7)).collect();
    values.sort_by(|a, b| b.cmp(a));
    values.iter().fold(0u64, |a, b| a.wrapping_add(*b))
}

#[inline(never)]
fn count(seed: u64) -> u64 {
    let mut seen: HashMap<String, u64> = HashMap::new();
    for i in 0..500u64 {
        *seen.entry(format!("k{}", i.wrapping_mul(seed) % 97)).or_insert(0) += 1;
    }
    seen.values().sum()
}

#[inline(never)]
fn serve(waiting: &Mutex<mpsc::Receiver<Job>>, number: u64) {
    while let Ok(job) = { let next = waiting.lock().unwrap(); next.recv() } {
        job(number);
    }
}

fn main() {
    let (jobs, waiting) = mpsc::sync_channel::<Job>(64);
    let waiting = Arc::new(Mutex::new(waiting));
    for number in 0..2u64 {
        let waiting = Arc::clone(&waiting);
        thread::spawn(move || serve(&waiting, number));
    }
    thread::spawn(|| {
        std::io::stdin().read_to_end(&mut Vec::new()).ok();
        std::process::exit(0);
    });
    println!("ready");
    let end = Instant::now() + Duration::from_secs(120);
    let mut turn = 0u64;
    while Instant::now() < end {
        turn += 1;
        let job: Job = if turn % 2 == 0 { Box::new(move |x| crunch(x + turn)) } else { Box::new(move |x| count(x + turn)) };
        jobs.send(job).unwrap();
        crunch(turn);
    }
}
