"""Settings of the documentation: `sphinx-build -W .docs .docs/_build/html` fails for what is broken or undocumented."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import pages  # noqa: E402

import headroles as hr  # noqa: E402
from headroles import tables  # noqa: E402

pages.write_all()

project = "headroles"
author = copyright = "The headroles developers"
release = version = tables.frame.version("headroles")
extensions = [
    *("sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"),
    *("myst_nb", "sphinx_design", "sphinx_copybutton"),
]
exclude_patterns = ["templates", "paper", "_build", "_templates", "generated/parts"]
templates_path = ["_templates"]
show_warning_types = True

nitpicky = True
nitpick_ignore_regex = [("py:(class|obj)", ".*")]  # types in signatures: those of other libraries have no page here

# Text and notebooks; these were committed with what they print, and are not run again.
nb_execution_mode = "off"
nb_ipywidgets_js = {}
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

# The reference is made of docstrings.
# By name: with True, Sphinx asks the build before this one, which does not know a page that is new.
autosummary_generate = sorted(str(path.relative_to(pages.HERE)) for path in (pages.MADE / "api").glob("*.rst"))
autosummary_ignore_module_all = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_maximum_signature_line_length = 88
python_use_unqualified_type_names = True
napoleon_google_docstring, napoleon_numpy_docstring = True, False
default_role = "literal"  # names of arguments and columns stand between single backquotes

html_theme = "pydata_sphinx_theme"
html_title = "headroles"
html_static_path = ["_static"]
html_css_files = ["headroles.css"]
html_context = {"default_mode": "auto"}
html_favicon = "_static/favicon.svg"
html_search_scorer = str(HERE / "search_scorer.js")
html_copy_source = html_show_sourcelink = False
html_sidebars = dict.fromkeys(("getting-started", "generated/gallery", "benchmarks", "quality", "generated/c*"), [])
html_theme_options = {
    "header_links_before_dropdown": 8,
    "navbar_persistent": ["search-button"],
    "navigation_with_keys": False,
    "show_prev_next": True,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}


def setup(app):
    """Prepare docstrings for reStructuredText, and end the build if a public name has no page."""
    pages.check_documented(hr)
    app.connect("source-read", pages.relinked)
    app.connect("autodoc-process-docstring", pages.escape, priority=400)  # before napoleon
    app.connect("autodoc-process-docstring", pages.untyped, priority=600)  # after it
