"""How Sphinx makes the site: `make site` writes it to build/site and lets no warning pass."""

import sys
from pathlib import Path

from docutils import nodes

from ppsim import __version__

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
from make_live_page import address

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


def link_to_live_page(app, doctree):
    """Make each picture of a timeline a link to the live page, which shows the same timeline."""
    for image in list(doctree.findall(nodes.image)):
        _, found, picture = image["uri"].partition("images/")
        if found and (state := address(picture)) and not isinstance(image.parent, nodes.reference):
            root = "../" * app.env.docname.count("/")
            link = nodes.reference("", "", refuri=f"{root}live/index.html#{state}", internal=False)
            link["reftitle"] = "Open in the live page"
            image.replace_self(link)
            link += image


def setup(app):
    app.connect("doctree-read", link_to_live_page)
