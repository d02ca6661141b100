"""The page of ``fnpipe explore``, as marimo runs it: cells that run anew where a slider moves."""
# marimo passes what other cells return as parameters without types.
# pyright: basic

import marimo  # pyright: ignore[reportMissingImports]


app = marimo.App(width="full", app_title="fnpipe explore")


@app.cell
def _():
    import sys

    import marimo as mo  # pyright: ignore[reportMissingImports]

    from fnpipe import explore, recipes
    from fnpipe.cli.options import parse_source, read

    data = read(parse_source(sys.argv[1:]))
    return data, explore, mo, recipes


@app.cell
def _(mo, recipes):
    recipe = mo.ui.dropdown([*recipes.RECIPES], value="yolo", label="recipe")
    size = mo.ui.dropdown(["320", "640", "1280"], value="640", label="side")
    return recipe, size


@app.cell
def _(data, explore, mo, recipe):
    def slider(name, low, high, step, value):
        return mo.ui.slider(
            low, high, step, value=value, label=name, show_value=True, debounce=True
        )

    values = mo.ui.dictionary(
        {name: slider(name, *r) for name, r in explore.sliders(recipe.value, data).items()}
    )
    at = mo.ui.dictionary(
        {
            "index": slider("photo", 0, max(1, len(data) - 1), 1, 0),
            "epoch": slider("epoch", 0, 100, 1, 0),
            "seed": slider("seed", 0, 100, 1, 0),
        }
    )
    return at, values


@app.cell
def _(at, data, explore, mo, recipe, size, values):
    chosen = explore.table(recipe.value, int(size.value), values.value)
    where = {"seed": at.value["seed"], "epoch": at.value["epoch"]}
    index = min(at.value["index"], len(data) - 1)
    panel = mo.vstack([mo.hstack([recipe, size]), *at.values(), *values.values()])
    try:
        shown = mo.image(explore.picture(data, chosen, index, **where), alt="sample", width=640)
    except ValueError as error:
        shown = mo.callout(str(error), kind="danger")
    written = mo.md(f"```python\n{explore.code(chosen, index, **where)}```")
    mo.hstack([panel, mo.vstack([shown, written])], widths=[1, 2], align="start")


if __name__ == "__main__":
    app.run()
