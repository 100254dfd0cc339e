"""The flame graph as one self-contained HTML page: the data, the vendored d3 modules and the page's own scripts
(exporters/assets).

Names from the target never become markup: they travel as compressed base64 and reach the document only as text nodes
and canvas text. A content security policy names the hash of each script and of the style. It forbids everything else:
requests, frames, forms, and (trusted types) turning strings into markup.

A notebook shows the page in a sandboxed frame, so that the page cannot access the notebook.
"""

from __future__ import annotations

import base64
import gzip
import html
import io
import pkgutil
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib import import_module
from typing import Any, BinaryIO

from pyprof.exporters.base import ExportOptions
from pyprof.exporters.display_names import labelled_name
from pyprof.exporters.flamegraph_samples import pack_samples
from pyprof.exporters.flamegraph_tree import build_flame_tree
from pyprof.model.analysis.function_costs import Function
from pyprof.model.loss_reason_texts import format_message
from pyprof.model.profile import Profile
from pyprof.model.untrusted_text import clean_text, dump_json
from pyprof.model.unwind_result import Trust

LIBRARIES = ("dispatch", "timer", "ease", "color", "interpolate", "format", "selection", "transition", "drag", "zoom")
"""Names of the d3 modules that the flame graph's page contains, each after those that it needs."""

SCRIPTS = (
    *(
        "format",
        "names",
        "model",
        "fold",
        "tree",
        "query",
        "palette",
        "viewport",
        "graph",
        "samples",
        "strip",
        "panels",
    ),
    *(
        "summary",
        "trend",
        "table",
        "diff",
        "sandwich",
        "source",
        "order",
        "save",
        "legend",
        "search",
        "view",
        "wiring",
        "app",
    ),
)
EARLY = "page.theme.js"
STYLE = "page.css"
TEMPLATE = "page.html"

_LEVEL = 6
"""Compression level of the page's data. Level 9 makes files 1 % smaller and takes ten times as long."""

_PLACEHOLDER = re.compile(r"\{\{(\w+)\}\}")


WORDS = {
    "notSampled": format_message("page_not_sampled"),
    "cutShort": format_message("page_cut_short"),
    "notExpanded": format_message("page_not_expanded"),
    "noSource": format_message("page_no_source"),
    "sourceChanged": format_message("page_source_changed"),
    "firstRows": format_message("page_first_rows", rows="{rows}", all="{all}"),
}
"""Messages of the flame graph's page about incomplete views, by the names that its scripts use."""


Beside = Callable[[list[Function]], Mapping[str, object]]
"""Function that returns additional entries for the page's data. It receives the functions in the order of the page's
table.
"""


MAX_BYTES = 8 << 20
"""Maximum size in bytes of a page that is shown in a notebook. A notebook stores all its output in its file."""
_HEIGHT = 600


def write(profile: Profile, out: BinaryIO, options: ExportOptions) -> None:
    """Write a profile as a page with a flame graph. ExportOptions.threads decides only whether the page opens grouped
    by thread; its reader can switch that.
    """
    write_page(profile, out, options)


def write_page(profile: Profile, out: BinaryIO, options: ExportOptions, beside: Beside | None = None) -> None:
    style, early = _asset(STYLE), _asset(EARLY)
    libraries = [_licences(), *(_asset(f"d3-{name}.min.js") for name in LIBRARIES)]
    scripts = [*libraries, *(_asset(f"page.{name}.js") for name in SCRIPTS)]
    # The HTML parser would change a lone carriage return, and with it the script's hash.
    scripts = [script.replace("\r", "") for script in scripts]
    data, samples = _data(profile, options, beside)
    parts = {
        "title": _escaped(clean_text(f"{profile.title} · pyprof")),
        "policy": _escaped(_policy([early, *scripts], style)),
        "style": style,
        "early": early,
        "data": _base64(data),
        "samples": _base64(samples),
        "scripts": "\n".join(f"<script>{script}</script>" for script in scripts),
    }
    out.write(_fill(_asset(TEMPLATE), parts).encode("utf-8"))


def _fill(template: str, parts: Mapping[str, str]) -> str:
    replace: Callable[[re.Match[str]], str] = lambda match: parts[match.group(1)]  # noqa: E731
    return _PLACEHOLDER.sub(replace, template)


def _asset(name: str) -> str:
    data = pkgutil.get_data("pyprof.exporters", f"assets/{name}")
    assert data is not None  # the package's loader finds files
    return data.decode("utf-8")


def _licences() -> str:
    """Return the licences of the page's libraries as one script comment. Equal licences occur once."""
    modules: dict[str, list[str]] = {}
    for name in LIBRARIES:
        modules.setdefault(_asset(f"d3-{name}.LICENSE").strip(), []).append(f"d3-{name}")
    texts = [f"{', '.join(names)}\n\n{text}" for text, names in modules.items()]
    return "/*!\n" + "\n\n".join(texts).replace("*/", "* /") + "\n*/"


def _policy(scripts: list[str], style: str) -> str:
    hashes = " ".join(sorted({_hash(script) for script in scripts}))
    return "; ".join(
        [
            "default-src 'none'",
            f"script-src {hashes}",
            f"style-src {_hash(style)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
        ]
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(_sha256(text.encode('utf-8')).digest()).decode('ascii')}'"


def _python_sha256() -> Any:
    """Return Python's built-in SHA-256 function. hashlib would load OpenSSL, which takes longer than all hashes of a
    page.
    """
    for name in ("_sha2", "_sha256"):
        with suppress(ImportError):
            return import_module(name).sha256
    return import_module("hashlib").sha256


_sha256 = _python_sha256()


def _escaped(text: str) -> str:
    """Escape a text for HTML as html.escape() does, without loading the html module's table of character names."""
    for character, name in (("&", "amp"), ("<", "lt"), (">", "gt"), ('"', "quot"), ("'", "#x27")):
        text = text.replace(character, f"&{name};")
    return text


def _base64(data: bytes) -> str:
    return base64.b64encode(gzip.compress(data, compresslevel=_LEVEL, mtime=0)).decode("ascii")


def _data(profile: Profile, options: ExportOptions, beside: Beside | None = None) -> tuple[bytes, bytes]:
    """Return the data of the flame graph's page: (JSON with flat columns, packed columns of all samples).

    Texts in the JSON are indices into its list `strings`; page.model.js reads them. flamegraph_samples.py packs the
    columns of samples. The last argument is a function that returns further entries for the JSON.
    """
    tree = build_flame_tree(profile, options)
    samples = pack_samples(profile, tree.row)
    strings: dict[str, int] = {"": 0}

    def text(value: str) -> int:
        return strings.setdefault(value, len(strings))

    # Parents are stored as distances: these are small numbers and compress well.
    parent = [node - up for node, up in enumerate(tree.parent)]
    document = {
        "title": profile.title,
        "startNs": str(profile.start_ns),
        "durationNs": profile.duration_ns,
        "periodNs": profile.period_ns,
        "valueTypes": [[value.type, value.unit] for value in profile.value_types],
        "groupByThread": options.threads,
        "groupByProcess": options.processes,
        "trusts": [trust.label for trust in Trust],
        "modules": [[text(module.path), text(module.build_id)] for module in profile.modules],
        "frames": {
            "name": [text(name) for name, _, _, _ in tree.frames],
            "group": [text(group) for _, group, _, _ in tree.frames],
            "module": [module for _, _, module, _ in tree.frames],
            "kind": [int(kind) for _, _, _, kind in tree.frames],
            "application": list(map(int, tree.application)),
        },
        "nodes": {
            "parent": parent,
            "frame": tree.frame,
            "how": tree.how,
            "start": [int(node in tree.start) for node in range(len(tree.parent))],
            "trust": tree.trust,
            "place": [text(place) for place in tree.place],
            "places": tree.places,
        },
        "samples": {"leaf": tree.leaf, "thread": tree.thread, "values": tree.values},
        "timeline": samples.header,
        "threads": [[t.pid, t.tid, text(labelled_name(profile, t)), text(t.process)] for t in profile.threads],
        "labels": [list(label) for label in profile.labels.items()],
        "summary": profile.summary.to_json(),
        "words": WORDS,
        **({"source": {**tree.source.document, "of": tree.lines}} if tree.source else {}),
        **(beside(tree.functions) if beside else {}),
    }
    document["strings"] = list(strings)
    return dump_json(document), samples.data


def render_profile(profile: Profile) -> str:
    """Return the HTML of a profile for a notebook (Profile._repr_html_)."""
    return render_iframe(lambda out: write(profile, out, ExportOptions()), repr(profile))


def render_iframe(writer: Callable[[BinaryIO], None], otherwise: str) -> str:
    """Return a page of the flame graph as an <iframe> element for a notebook.

    Args:
        writer: Function that writes the page.
        otherwise: Text to show in place of a page of more than MAX_BYTES.
    """
    out = io.BytesIO()
    writer(out)
    page = out.getvalue()
    if len(page) > MAX_BYTES:
        size = f"{len(page) / 1e6:.0f} MB is much for a notebook: save() writes it to a file"
        return f"<pre>{html.escape(otherwise)}</pre><p>The page of {size}.</p>"
    # Only ASCII: the page's policy has the SHA-256 of its scripts in UTF-8, and the document that
    # contains the <iframe> may be read in another encoding.
    attribute = html.escape(page.decode("utf-8"), quote=True).encode("ascii", "xmlcharrefreplace").decode()
    # No allow-same-origin: the page contains names from the target and must not read the notebook.
    return (
        f'<iframe sandbox="allow-scripts allow-downloads" width="100%" height="{_HEIGHT}" '
        f'style="border: 0" srcdoc="{attribute}"></iframe>'
    )
