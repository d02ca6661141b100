"""How the site is built: sphinx-build -W -b html docs build/docs"""

import pkgutil

import fnpipe


project = "fnpipe"
author = "the authors of fnpipe"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
html_theme = "furo"
html_title = "fnpipe"
exclude_patterns = ["examples"]
myst_heading_anchors = 3
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
# Shapes in annotations are words of jaxtyping's, which Sphinx would take for code.
autodoc_typehints = "none"
nitpicky = True
# Roles must resolve, except those to names of other packages and to single fields.
nitpick_ignore_regex = [("py:class", "(?!fnpipe).*"), ("py:obj", ".*"), ("py:attr", ".*")]


def resolve(app, env, node, contnode):
    """A reference to where something is defined leads to the public name it is documented by.

    What has no entry of its own stays plain text, if it is there at all: else the build fails.
    """
    target, module = node.get("reftarget", ""), node.get("py:module") or "fnpipe"
    name = target.rpartition(".")[2]
    if name in vars(fnpipe) and target != f"fnpipe.{name}":
        domain = env.get_domain("py")
        found = domain.resolve_xref(
            env, node["refdoc"], app.builder, "obj", f"fnpipe.{name}", node, contnode
        )
        return found or contnode
    names = (target, f"{module}.{target}")
    return contnode if any(leads_somewhere(n) for n in names if n.startswith("fnpipe")) else None


def leads_somewhere(name):
    """Whether a dotted name leads to anything."""
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def setup(app):
    app.connect("missing-reference", resolve)
