"""A driver of the flame graph page: what a user does and sees, and the contents of its trees."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.exporters.browser import Browser

Path = tuple[str, ...]


class Page:
    def __init__(self, browser: Browser) -> None:
        self.browser = browser

    def paths(self) -> dict[Path, float]:
        """Return the value of each node of the drawn tree, keyed by names from below the root to the node."""
        found = self.browser.run(
            "Array.from({length: tree.n}, (_, i) => [tree.parent[i], model.frames[tree.frame[i]].name, tree.value[i]])"
        )
        names: list[Path] = []
        values: dict[Path, float] = {}
        for parent, name, value in found:
            path = (*names[parent], name) if parent >= 0 else ()
            names.append(path)
            values[path] = values.get(path, 0) + value
        return values

    def row(self, depth: int) -> list[str]:
        """Return the names in one row from left to right."""
        frames = f"tree.frame.slice(tree.rowStart[{depth}], tree.rowStart[{depth + 1}])"
        found: list[str] = self.browser.run(f"Array.from({frames}, frame => model.frames[frame].name)")
        return found

    def node(self, *names: str) -> int:
        """Return the first node whose path ends with these names."""
        script = f"""(() => {{
          const names = {json.dumps(names)};
          for (let i = 0; i < tree.n; i++) {{
            let at = i, left = names.length;
            while (left && at >= 0 && model.frames[tree.frame[at]].name === names[left - 1]) {{
              at = tree.parent[at];
              left--;
            }}
            if (!left) return i;
          }}
          return -1;
        }})()"""
        at = int(self.browser.run(script))
        assert at >= 0, names
        return at

    def rectangle(self, *names: str) -> dict[str, float]:
        """Return the node's x, y, width and height in the window."""
        script = f"""(() => {{
          const r = graph.rectangle({self.node(*names)}), c = graph.canvas.getBoundingClientRect();
          return {{ x: c.x + r.x, y: c.y + r.y, width: r.width, height: r.height }};
        }})()"""
        found: dict[str, float] = self.browser.run(script)
        return found

    def centre(self, *names: str) -> tuple[float, float]:
        box = self.rectangle(*names)
        return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2

    def click(self, *names: str) -> None:
        self.browser.click(*self.centre(*names))

    def hover(self, *names: str) -> str:
        """Move the mouse over a node and return the tooltip's text."""
        self.browser.move(*self.centre(*names))
        return self.text("#tooltip")

    def text(self, selector: str) -> str:
        found: str = self.browser.run(f"document.querySelector({json.dumps(selector)}).innerText")
        return found

    def shown(self, selector: str) -> bool:
        return bool(self.browser.run(f"document.querySelector({json.dumps(selector)}).checkVisibility()"))

    def pressed(self, selector: str) -> bool:
        script = f"document.querySelector({json.dumps(selector)}).getAttribute('aria-pressed')"
        return bool(self.browser.run(script) == "true")

    def search(self, text: str) -> str:
        """Type into the search field and return the text that describes the matches."""
        self.browser.click_on("#search")
        self.browser.type(text)
        return self.text("#matched")

    def pixel(self, x: float, y: float) -> list[int]:
        """Return red, green and blue of a point of the canvas."""
        script = f"""(() => {{
          graph.draw();
          const c = graph.canvas.getBoundingClientRect();
          const pen = document.createElement("canvas").getContext("2d", {{ willReadFrequently: true }});
          pen.drawImage(graph.canvas, c.x - {x}, c.y - {y});
          return [...pen.getImageData(0, 0, 1, 1).data].slice(0, 3);
        }})()"""
        found: list[int] = self.browser.run(script)
        return found

    def state(self, name: str) -> Any:
        return self.browser.run(f"state.{name}")


def picked(page: Page, name: str) -> None:
    """Select a function in the table, and assert that the graph marks it."""
    page.browser.press("f")
    row = f"[...document.querySelectorAll('#rows .name')].findIndex(b => b.title === '{name}')"
    at = page.browser.run(row)
    assert at >= 0
    page.browser.click_on(f"#rows tr:nth-child({at + 1}) button")
    assert page.pressed("#view-graph")
    assert page.text("#zoom-name") == name
    box = page.browser.run("graph.rectangle(graph.focus)")
    top = page.browser.run("graph.canvas.getBoundingClientRect().y")
    assert box["width"] == pytest.approx(page.browser.run("graph.width"))
    assert page.pixel(box["x"] + box["width"] - 8, top + box["y"] + 4) == [0xB3, 0x12, 0x6F]


def choose(page: Page, selector: str, value: str) -> None:
    page.browser.run(
        f"(s => {{ s.value = {value!r}; s.dispatchEvent(new Event('change')); }})(document.querySelector({selector!r}))"
    )
    page.browser.settle()
