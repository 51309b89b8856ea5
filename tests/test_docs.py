"""The documentation is built strictly by one command, and works in a real browser."""

from __future__ import annotations

import functools
import html
import http.server
import importlib.util
import json
import os
import re
import threading
import tomllib
from pathlib import Path
from types import ModuleType
from urllib.parse import unquote, urlsplit

import matplotlib.pyplot as plt
import pytest
import studies
from helpers.processes import Fork

import headroles as hr

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / ".docs/_build/html"  # .ci/run builds there too, and finds it done
PAGES = ["index.html", "generated/gallery.html", "concepts/scores.html", "results/ablation.html"]
PAGES += ["tutorials/2_roles.html", "generated/api/names/headroles.score.html", "generated/papers/voita2019.html"]
PAGES += ["reference/architectures.html"]
FIRST = {"roles": "concepts/roles", "pruning": "concepts/pruning", "previous token": "concepts/roles"}  # page by search
FIRST |= {"GQA": "concepts/heads", "head_mask": "generated/api/names/headroles.head_mask"}
FIRST["timestamps"] = "how-to/timestamps"
pytestmark = pytest.mark.slow


def _needs(found: object, lacking: str) -> None:
    if not found:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(lacking)


@pytest.fixture(scope="module")
def site() -> Path:
    _needs(importlib.util.find_spec("sphinx"), "the documentation needs the extra [docs]")
    code = "import sys\nfrom sphinx.cmd.build import main\nsys.exit(main(sys.argv[1:]))"
    process = Fork(code, "-qW", ROOT / ".docs", SITE)
    assert process.wait() == 0, process.said()
    return SITE


def test_every_local_link_and_picture_is_there(site):
    texts = {path: path.read_text(encoding="utf-8") for path in site.rglob("*.html") if "_static" not in path.parts}
    anchors = {path: {*re.findall(r' (?:id|name)="([^"]+)"', text)} for path, text in texts.items()}
    assert len(texts) > 150
    missing = {f"{path}: rows without their table" for path, text in texts.items() if "<p>| " in text}
    for path, text in texts.items():
        for link in {*re.findall(r' (?:href|src)="([^"]+)"', text)}:
            parts = urlsplit(html.unescape(link))
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            known = not parts.fragment or target not in anchors or unquote(parts.fragment) in anchors[target]
            if not parts.scheme and not (target.exists() and known):
                missing.add(f"{path.relative_to(site)}: {link}")
    assert sorted(missing) == []


def test_nothing_is_asked_of_the_network(site):
    """No fonts, styles or scripts of other places."""
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        asked = r"<(?:script|img)[^>]* src=\"https?:[^\"]*|<link rel=\"stylesheet\"[^>]*https?:"
        assert re.findall(asked, text) == [], path


def test_every_class_of_a_plug_in_has_a_page(site):
    """The classes that the examples of `extend.md` derive from, and what their methods are given."""
    text = (ROOT / ".docs/how-to/extend.md").read_text(encoding="utf-8")
    found = re.findall(r"^[.>]{3} class \w+\(([\w., ]+)\):", text, re.M)
    bases = {base for classes in found for base in classes.split(", ")}
    names = {base.split(".")[-1] for base in bases}
    assert names >= {"Score", "Pattern", "Objective", "Ranking"}
    names |= {"GradientScore", "Metric", "Role", "Reading", "Observation", "RankingContext"}
    pages = {path.stem.split(".")[-1] for path in (site / "generated/api/names").glob("*.html")}
    assert names - pages == set()


def test_a_public_name_without_a_page_or_a_docstring_ends_the_build(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / ".docs")
    pages = importlib.import_module("pages")
    pages.check_documented(hr)
    public = ModuleType("public")
    vars(public).update({name: getattr(hr, name) for name in hr.__all__}, more=hr.score, __all__=[*hr.__all__, "more"])
    with pytest.raises(ValueError, match=re.escape("not in reference/groups.toml ['more']")):
        pages.check_documented(public)
    vars(public).update(score=lambda: None, __all__=hr.__all__)
    with pytest.raises(ValueError, match=re.escape("without a docstring ['score']")):
        pages.check_documented(public)


def test_every_line_of_the_gallery_draws_its_figure_under_its_model_and_corpus():
    """Committed pictures are drawn in tests/figures/test_studies.py."""
    for entry in tomllib.loads((ROOT / ".docs/gallery.toml").read_text(encoding="utf-8"))["figure"]:
        if "picture" in entry:
            assert (ROOT / "figures" / entry["picture"]).is_file()
        else:
            figure = studies.draw(entry | {"file": entry["title"]}, ROOT)
            assert entry["of"] in [text.get_text() for text in figure.texts]
            plt.close("all")


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def served(site):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=site))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()
    thread.join()


def _is_lost(request):
    """Whether a request failed other than because the page was left before it came."""
    return request.failure != "net::ERR_ABORTED"


@pytest.fixture
def page(browser, served):
    """A page of the site on a desktop; what it logs, throws and asks in vain is looked at in the end."""
    said: list[str] = []
    context = browser.new_context(viewport={"width": 1280, "height": 900}, base_url=served)
    page = context.new_page()
    page.on("console", lambda line: line.type in ("error", "warning") and said.append(line.text))
    page.on("pageerror", lambda error: said.append(f"thrown: {error}"))
    page.on("requestfailed", lambda request: _is_lost(request) and said.append(f"failed: {request.url}"))
    page.on("request", lambda request: request.url.startswith(served) or said.append(f"asked for {request.url}"))
    yield page
    context.close()
    assert said == []


def test_pages_show_their_pictures_and_fit_a_phone(page):
    for width, names in ((390, PAGES), (1280, PAGES[:2])):
        page.set_viewport_size({"width": width, "height": 844})
        for name in names:
            page.goto(name)
            assert page.locator("h1").count() >= 1, name
            broken = page.evaluate("[...document.images].filter(i => i.complete && !i.naturalWidth).map(i => i.src)")
            assert broken == [], name
            assert page.evaluate("document.documentElement.scrollWidth") <= width, (name, width)


def test_the_search_finds_a_score_and_the_right_page_first(page):
    page.goto("search.html?q=confidence")
    results = page.locator("#search-results li")
    page.get_by_role("link", name="Scores", exact=True).and_(results.locator("a")).first.wait_for(timeout=60_000)
    for words, name in FIRST.items():
        page.goto(f"search.html?q={words}")
        first = page.locator("#search-results li > a").first  # the best comes first, the others one by one
        assert first.get_attribute("href", timeout=60_000).partition("#")[0].split("?")[0] == f"{name}.html", words


def test_no_sentence_of_a_property_is_taken_for_its_type(site):
    text = (site / "generated/api/names/headroles.patterns.Pattern.html").read_text(encoding="utf-8")
    assert "Name and options, in columns and file names:" in text
    for path in (site / "generated/api/names").glob("*.html"):
        found = re.findall(r">Type<span.*?<dd.*?>(.*?)</dd>", path.read_text(encoding="utf-8"), re.DOTALL)
        types = [html.unescape(re.sub(r"<[^>]*>", "", text)) for text in found]
        assert not [text for text in types if re.search(r"[a-z]+ [a-z]+ [a-z]+", text)], path


def test_a_flag_shows_no_type_and_no_code_runs_off_the_page(page, site):
    for path in (site / "generated/cli").glob("*.html"):
        assert "&lt;bool" not in path.read_text(encoding="utf-8"), path
    for name in ("getting-started.html", "how-to/share.html", "how-to/extend.html", "generated/gallery.html"):
        page.goto(name)
        wide = "[...document.querySelectorAll('.bd-article pre')].filter(p => p.scrollWidth > p.clientWidth + 1).length"
        assert page.evaluate(wide) == 0, name


def test_the_gallery_is_two_screens_of_thumbnails_with_their_code_behind_a_click(page):
    page.goto("generated/gallery.html")
    assert page.evaluate("document.querySelector('.bd-article').scrollHeight") < 2.2 * 900
    assert page.locator(".thumbnail pre:visible").count() == 0
    page.locator(".thumbnail summary").first.click()
    assert page.locator(".thumbnail pre:visible").count() == 1


def test_a_notebook_has_a_badge_where_the_repository_is_known(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / ".docs")
    pages = importlib.import_module("pages")
    path = ROOT / "notebooks/1_one_head.ipynb"
    assert pages.badged(path, "") == path.read_text(encoding="utf-8")
    first = "".join(json.loads(pages.badged(path, "OWNER/NAME"))["cells"][0]["source"])
    address = "https://colab.research.google.com/github/OWNER/NAME/blob/main/notebooks/1_one_head.ipynb"
    assert first.startswith(f"# One head\n\n[**Open in Colab**]({address})\n\nWhat is")
