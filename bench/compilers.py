"""Compilers as targets: sources that keep them busy for longer than any recording."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

FUNCTIONS = 1500
CLANG_SETTLES_S, RUST_SETTLES_S = 1.0, 2.5
"""Time in seconds until the compiler has loaded its libraries and read its source."""

_RUST_HEAD = """#![allow(dead_code)]
use std::collections::{BTreeMap, HashMap};
use std::fmt::Debug;
use std::hash::Hash;
"""
_RUST = """
#[inline(never)]
pub fn stage%(n)d<T: Clone + Debug + Ord + Hash>(items: &[T]) -> BTreeMap<String, Vec<T>> {
    let mut counts: HashMap<T, usize> = HashMap::new();
    for item in items { *counts.entry(item.clone()).or_insert(%(n)d) += 1; }
    let mut pairs: Vec<(T, usize)> = counts.into_iter().collect();
    pairs.sort_by(|a, b| b.1.cmp(&a.1).then_with(|| a.0.cmp(&b.0)));
    pairs.iter().map(|(item, count)| (format!("{:?} {}", item, count %% 7), item.clone())).fold(
        BTreeMap::new(),
        |mut found: BTreeMap<String, Vec<T>>, (name, item)| { found.entry(name).or_default().push(item); found },
    )
}
"""
_RUST_USE = """    total += stage%(n)d(&[%(n)du32, 2]).len() + stage%(n)d(&[String::from("a")]).len();
    total += stage%(n)d(&[(1u8, 'a')]).len();
"""

_CXX_HEAD = """#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>
"""
_CXX = """
template <class T> std::size_t stage%(n)d(const std::vector<T> &items) {
    std::unordered_map<std::string, std::vector<T>> all;
    auto shared = std::make_shared<std::map<T, int>>();
    for (const auto &item : items) { (*shared)[item] += %(n)d; all[std::to_string(all.size())].push_back(item); }
    std::vector<std::pair<T, int>> pairs(shared->begin(), shared->end());
    std::sort(pairs.begin(), pairs.end(), [](const auto &a, const auto &b) { return b.second < a.second; });
    return all.size() + pairs.size();
}
std::size_t use%(n)d() {
    return stage%(n)d<int>({%(n)d}) + stage%(n)d<std::string>({"a"}) + stage%(n)d<std::pair<char, long>>({{'a', 2}});
}
"""


def rust_compiler(folder: Path) -> Callable[[float], list[str]]:
    source = folder / "big.rs"
    numbers = [{"n": n} for n in range(FUNCTIONS)]
    body = "".join(_RUST_USE % each for each in numbers)
    main = f"pub fn all() -> usize {{\n    let mut total = 0;\n{body}    total\n}}\n"
    source.write_text(_RUST_HEAD + "".join(_RUST % each for each in numbers) + main)
    options = ["-O", "-Ccodegen-units=1", "--crate-type=lib", "--out-dir", str(folder)]
    return lambda seconds: ["rustc", *options, str(source)]


def clang(folder: Path) -> Callable[[float], list[str]]:
    source = folder / "big.cc"
    source.write_text(_CXX_HEAD + "".join(_CXX % {"n": n} for n in range(FUNCTIONS)))
    return lambda seconds: ["clang++", "-O2", "-std=c++17", "-c", "-o", str(folder / "big.o"), str(source)]
