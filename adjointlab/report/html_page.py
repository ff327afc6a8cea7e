"""A self-contained HTML page, which needs no network, has a light and a dark theme, and is readable on a phone."""

from __future__ import annotations

from html import escape
from typing import Final

from adjointlab.pictures.theme import DARK, LIGHT, PICTURE_STYLE, declarations

__all__ = ["page"]

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
"""Content security policy: the page loads no resources, whatever it contains."""


def page(title: str, body: str) -> str:
    """Return a page. `title` is text; `body` is HTML, in which user text has been escaped."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(title)}</title>\n<style>\n{_STYLE}{PICTURE_STYLE}\n</style>\n</head>\n<body>\n"
        f'<header><h1>{escape(title)}</h1><button type="button" id="theme" hidden>theme</button></header>\n'
        f"{body}\n<script>\n{_SCRIPT}</script>\n</body>\n</html>\n"
    )


_STYLE: Final = (
    f":root{{{declarations(LIGHT)}}}\n"
    f"@media (prefers-color-scheme:dark){{:root:not([data-theme=light]){{{declarations(DARK)}}}}}\n"
    f":root[data-theme=dark]{{{declarations(DARK)}color-scheme:dark}}\n:root[data-theme=light]{{color-scheme:light}}\n"
    """*{box-sizing:border-box}
body{margin:0 auto;max-width:76rem;padding:1rem;background:var(--al-paper);color:var(--al-ink);
 font:16px/1.5 system-ui,-apple-system,"Segoe UI",sans-serif}
header{display:flex;align-items:baseline;gap:1rem;justify-content:space-between}
h1{font-size:1.4rem;margin:.2rem 0}h2{font-size:1.1rem;margin:1.6rem 0 .4rem}
button,input{font:inherit;color:inherit;background:var(--al-paper);border:1px solid var(--al-line);border-radius:6px;
 padding:.3rem .6rem}
button{cursor:pointer}button[aria-pressed=true]{border-color:var(--al-ink);box-shadow:inset 0 0 0 1px var(--al-ink)}
a{color:var(--al-target)}:focus-visible{outline:2px solid var(--al-target);outline-offset:2px}
.find{display:flex;flex-wrap:wrap;gap:.5rem;position:sticky;top:0;background:var(--al-paper);padding:.5rem 0;z-index:1}
.find input{flex:1 1 12rem;min-width:0}
details{border:1px solid var(--al-line);border-radius:8px;margin:.4rem 0;overflow:hidden}
summary{display:flex;flex-wrap:wrap;gap:.2rem .8rem;padding:.45rem .7rem;cursor:pointer;align-items:baseline}
summary .name{font-weight:600;overflow-wrap:anywhere}summary .more{color:var(--al-dim);margin-left:auto;font-size:.9rem}
.badge{font-size:.8rem;border:1px solid currentcolor;border-radius:99px;padding:0 .6rem;white-space:nowrap}
.coherent .badge{color:var(--al-right)}.incoherent .badge,.unexpected .badge{color:var(--al-wrong)}
.unjudged .badge{color:var(--al-r5)}.expected .badge{color:var(--al-dim)}
.incoherent,.unexpected{border-left:4px solid var(--al-wrong)}.unjudged{border-left:4px solid var(--al-r5)}
.inside{padding:.2rem .9rem .9rem;border-top:1px solid var(--al-line)}
.headline{font-weight:600;margin:.5rem 0;overflow-wrap:anywhere}
.scroll{overflow-x:auto}pre{overflow-x:auto;background:color-mix(in srgb,var(--al-line) 25%,transparent);padding:.7rem;
 border-radius:6px;font-size:.85rem;line-height:1.4}
.scroll svg{display:block;margin:.7rem 0}
dl{display:grid;grid-template-columns:max-content 1fr;gap:.1rem 1rem;margin:.4rem 0}
dt{color:var(--al-dim)}dd{margin:0;overflow-wrap:anywhere}
.files{display:flex;flex-wrap:wrap;gap:.4rem 1rem}.none{color:var(--al-dim)}
.note{border-left:4px solid var(--al-r5);padding:.2rem .8rem;margin:.4rem 0;overflow-wrap:anywhere}
@media (max-width:40rem){body{padding:.6rem;font-size:15px}dl{grid-template-columns:minmax(0,1fr) minmax(0,1fr)}
 summary .more{margin-left:0;flex-basis:100%}}
"""
)

_SCRIPT: Final = """"use strict";
const entries = [...document.querySelectorAll("details[data-text]")];
const search = document.querySelector("#search"), none = document.querySelector("#none");
const kinds = [...document.querySelectorAll("button[data-kind]")];
function filter() {
  const words = search.value.toLowerCase().split(/\\s+/).filter(Boolean);
  const wanted = kinds.filter(each => each.getAttribute("aria-pressed") === "true").map(each => each.dataset.kind);
  let shown = 0;
  for (const entry of entries) {
    const fits = words.every(word => entry.dataset.text.includes(word))
      && (!wanted.length || wanted.includes(entry.dataset.kind));
    entry.hidden = !fits;
    shown += fits;
  }
  none.hidden = shown > 0;
}
if (search) {
  search.addEventListener("input", filter);
  for (const each of kinds) each.addEventListener("click", () => {
    each.setAttribute("aria-pressed", each.getAttribute("aria-pressed") !== "true");
    filter();
  });
}
const theme = document.querySelector("#theme"), root = document.documentElement;
const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const show = () => { theme.textContent = dark() ? "light theme" : "dark theme"; };
theme.hidden = false;
theme.addEventListener("click", () => { root.dataset.theme = dark() ? "light" : "dark"; show(); });
show();
"""
