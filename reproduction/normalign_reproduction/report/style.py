"""How the report looks and answers: its style sheet and its script.

Without the script the page is the same, less sorting, filtering and the choice of a
theme.
"""

from __future__ import annotations

__all__ = ["SCRIPT", "STYLE"]

STYLE = """
html { scroll-padding-top: 1rem; }
body { max-width: 82rem; padding: 1.5rem clamp(1rem, 3vw, 2.5rem) 4rem; }
.top { display: flex; gap: 1rem; align-items: start; justify-content: space-between; }
.lead { font-size: 1.05rem; }
button, input { font: inherit; color: inherit; background: var(--card);
  border: 1px solid var(--line); border-radius: .5rem; padding: .3rem .8rem; }
button { cursor: pointer; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
.theme { flex: none; font-size: .9rem; }
.tools { display: flex; flex-wrap: wrap; gap: .5rem 1rem; align-items: center;
  margin: .8rem 0 .4rem; }
.tools input { flex: 0 1 20rem; min-width: 0; }
[hidden] { display: none !important; }
.over { margin: 0; color: var(--soft); font-size: .9rem; }
section { border-top: 1px solid var(--line); margin-top: 2.6rem; padding-top: 1.4rem; }
section h2 { margin: .1rem 0 .6rem; font-size: 1.35rem; line-height: 1.25; }
h3 { font-size: 1rem; margin: 1.6rem 0 .3rem; }
h3 small { font-weight: 400; color: var(--soft); font-size: .85rem; }
.says { display: grid; gap: .8rem 2rem; margin: .6rem 0;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); }
.says p { margin: 0; max-width: none; }
.says b { display: block; font-weight: 600; font-size: .85rem; color: var(--soft); }
.pill { display: inline-block; padding: 0 .55rem; border-radius: 1rem;
  font-size: .82rem; line-height: 1.5rem; white-space: nowrap; font-weight: 500; }
.holds { color: var(--good); background: var(--good-ground); }
.fails { color: var(--bad); background: var(--bad-ground); }
.open { color: var(--open); background: var(--open-ground); }
.quick { color: var(--small); background: var(--small-ground); }
.lacking { background: var(--small-ground); color: var(--small); padding: .5rem .8rem;
  border-radius: .5rem; max-width: none; }
.lacking code { overflow-wrap: anywhere; }

figure.plate { padding: .8rem; margin: .8rem 0; }
.legend { display: flex; flex-wrap: wrap; gap: .1rem 1.1rem; font-size: .85rem;
  margin: 0 .3rem .5rem; padding: 0; list-style: none; }
.legend .swatch { display: inline-block; width: 1.3em; height: .22em;
  margin-right: .4em; vertical-align: .25em; border-radius: 1px; }
.legend .heading { color: var(--soft); }
.panels { display: flex; flex-wrap: wrap; gap: .6rem 1rem; justify-content: center; }
.panels > div { flex: 1 1 18rem; max-width: 27rem; min-width: 0; }
.panels.whole { display: block; overflow-x: auto; }
.panels.whole > div { max-width: none; }
.panels.whole svg { max-width: 64rem; }
.panels.whole.wide svg { min-width: 36rem; }
figcaption { padding: .5rem .3rem 0; }

.box { overflow: auto; max-height: 52rem; border: 1px solid var(--line);
  border-radius: .5rem; margin: .4rem 0; }
.box table { width: 100%; font-size: .92rem; }
.box th, .box td { padding: .4rem .8rem; text-align: left; vertical-align: top; }
.box tbody tr:last-child > * { border-bottom: 0; }
.box thead th { position: sticky; top: 0; background: var(--card); z-index: 1;
  vertical-align: bottom; }
.box .number { text-align: right; white-space: nowrap; }
.box .paper { color: var(--soft); }
.box tbody th { font-weight: 400; }
th button { all: unset; cursor: pointer; }
th button::after { content: "\\2195"; color: var(--soft); margin-left: .35em;
  font-size: .8em; }
th[aria-sort=ascending] button::after { content: "\\2191"; color: var(--ink); }
th[aria-sort=descending] button::after { content: "\\2193"; color: var(--ink); }
th button:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
.files { font-size: .85rem; color: var(--soft); margin: .2rem 0 0; }
ul.plain { margin: .2rem 0; padding-left: 1.2rem; }
.columns { display: grid; gap: 0 2.5rem; margin-top: .8rem;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 22rem), 1fr)); }
.columns > div { min-width: 0; }
details { margin: .6rem 0; }
summary { cursor: pointer; color: var(--accent); font-size: .92rem; }
.summary { max-height: none; }
.summary td { min-width: 4rem; }
.summary .short { white-space: nowrap; }
.summary .words { min-width: 15rem; }
.verdicts .words { min-width: 13rem; width: 55%; }
.claim > summary { color: inherit; font-size: 1rem; }
.claim .rule { color: var(--soft); font-size: .9rem; }
.claim > summary .pill { margin-left: .3rem; }

@media (max-width: 46rem) {
  .cards { max-height: none; border: 0; overflow: visible; }
  .cards thead tr { display: flex; flex-wrap: wrap; gap: .4rem; margin-bottom: .5rem; }
  .cards thead th { position: static; border: 1px solid var(--line);
    border-radius: 1rem; padding: .1rem .7rem; font-weight: 400; font-size: .82rem;
    min-width: 0; width: auto; }
  .verdicts.cards thead { display: none; }
  html:not(.scripted) .cards thead { display: none; }
  .cards table, .cards tbody, .cards tbody tr, .cards tbody th, .cards tbody td {
    display: block; width: 100%; min-width: 0; }
  .cards tbody tr { border: 1px solid var(--line); border-radius: .5rem;
    padding: .5rem .8rem; margin-bottom: .6rem; }
  .cards tbody th, .cards tbody td { border: 0; padding: .15rem 0; text-align: left;
    white-space: normal; overflow-wrap: anywhere; }
  .cards tbody [data-label]::before { content: attr(data-label); color: var(--soft);
    font-size: .8rem; display: block; }
  .cards tbody .short { display: inline-block; width: auto; margin-right: 1.1rem; }
  .cards .words { min-width: 0; width: auto; }
  .cards tbody td:empty { display: none; }
}
"""

SCRIPT = """
(() => {
  const root = document.documentElement;
  root.classList.add('scripted');
  const stored = {
    get() { try { return localStorage.getItem('theme'); } catch { return null; } },
    set(value) { try { localStorage.setItem('theme', value); } catch { } },
  };

  const theme = document.querySelector('.theme');
  const system = matchMedia('(prefers-color-scheme: dark)');
  const chosen = () => root.dataset.theme || (system.matches ? 'dark' : 'light');
  const dark = () => chosen() === 'dark';
  const label = () => { theme.textContent = dark() ? 'Light' : 'Dark'; };
  if (['light', 'dark'].includes(stored.get())) root.dataset.theme = stored.get();
  theme.addEventListener('click', () => {
    root.dataset.theme = dark() ? 'light' : 'dark';
    stored.set(root.dataset.theme);
    label();
  });
  system.addEventListener('change', label);
  theme.hidden = false;
  label();

  // What has no key comes last, whichever way.
  const compare = (a, b, sign) => {
    if (a === '' || b === '') return (a === '') - (b === '');
    const difference = Number(a) - Number(b);
    return sign * (Number.isNaN(difference) ? a.localeCompare(b) : difference);
  };
  for (const table of document.querySelectorAll('table.sortable')) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, place) => {
      const button = document.createElement('button');
      button.type = 'button';
      button.textContent = head.textContent;
      head.replaceChildren(button);
      button.addEventListener('click', () => {
        const rising = head.getAttribute('aria-sort') !== 'ascending';
        heads.forEach(one => one.removeAttribute('aria-sort'));
        head.setAttribute('aria-sort', rising ? 'ascending' : 'descending');
        const key = row => row.cells[place].dataset.key ?? row.cells[place].textContent;
        const rows = [...table.tBodies[0].rows];
        rows.sort((a, b) => compare(key(a), key(b), rising ? 1 : -1));
        table.tBodies[0].append(...rows);
      });
    });
  }

  const tools = document.querySelector('.tools');
  const field = tools.querySelector('input');
  const count = tools.querySelector('[aria-live]');
  const rows = [...document.querySelectorAll('.summary tbody tr')];
  const filter = () => {
    const words = field.value.toLowerCase().split(/\\s+/).filter(Boolean);
    let shown = 0;
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      row.hidden = !words.every(word => text.includes(word));
      shown += !row.hidden;
    }
    count.textContent = words.length ? `${shown} of ${rows.length}` : '';
  };
  field.addEventListener('input', filter);
  tools.hidden = false;
  filter();
})();
"""
