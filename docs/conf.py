"""How Sphinx makes the site: `make site` writes it to build/site and lets no warning pass."""

from ppsim import __version__

project = "ppsim"
author = "the ppsim developers"
release = __version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.intersphinx"]
exclude_patterns = ["build"]
html_theme = "furo"
html_title = "ppsim"
html_show_sourcelink = False
html_show_copyright = False
html_static_path = ["static"]
html_css_files = ["site.css"]

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # the notebooks are stored with their outputs, and the tests run them

autodoc_member_order = "bysource"
autodoc_typehints = "none"  # the docstrings say types with shapes and units
autodoc_default_options = {
    "members": True,
    "inherited-members": True,
    "exclude-members": "mark_valid",
    "no-index-entry": True,
}
napoleon_google_docstring = False
napoleon_use_rtype = False
intersphinx_mapping: dict[str, tuple[str, None]] = {}  # no network is needed to make the site
suppress_warnings = [
    "myst.xref_missing",
    "ref.python",
]  # links into the repository; attributes that Schedule and Program share
