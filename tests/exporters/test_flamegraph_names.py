"""Names as they are fitted into boxes."""

from __future__ import annotations

import json

import pytest

from tests.exporters.conftest import OpenPage
from tests.exporters.profiles import golden


@pytest.mark.parametrize(
    ("name", "short"),
    [
        (
            "v8::Handle<v8::Object> v8::(anonymous namespace)::help<false>(int)",
            "v8::Handle v8::(anonymous namespace)::help",
        ),
        ("std::vector<int, std::allocator<int> >::push_back(int const&)", "std::vector::push_back"),
        ("<alloc::vec::Vec<T> as Clone>::clone", "<alloc::vec::Vec<T> as Clone>::clone"),
        ("main", "main"),
    ],
)
def test_a_compact_name_loses_arguments_and_no_part_of_its_path(open_page: OpenPage, name: str, short: str) -> None:
    page = open_page(golden())
    assert page.browser.run(f"compactName({json.dumps(name)})") == short
