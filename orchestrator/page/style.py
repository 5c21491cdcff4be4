"""The style sheet of the status page, with light and dark colours, for narrow and wide screens."""

STYLE = """
:root { color-scheme: light dark; --back: #ffffff; --card: #f5f7f9; --text: #1c2127;
  --dim: #57606b; --edge: #d9dfe5; --first: #0a5cc0; --second: #9a5b00; --good: #14702f;
  --bad: #b3222b; --good-back: #e2f4e6; --bad-back: #fce5e5; }
@media (prefers-color-scheme: dark) { :root { --back: #11151a; --card: #191f26; --text: #e4e9ee;
  --dim: #9aa5b1; --edge: #303944; --first: #6cb0ff; --second: #eda94f; --good: #6fd58b;
  --bad: #ff9a9a; --good-back: #15301f; --bad-back: #3b1b1e; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 76rem; padding: 1.25rem; background: var(--back);
  color: var(--text); font: 15px/1.45 system-ui, sans-serif; font-variant-numeric: tabular-nums; }
header { display: flex; flex-wrap: wrap; align-items: baseline; gap: .25rem .9rem; }
h1 { font-size: 1.35rem; margin: 0; }
h2 { font-size: 1rem; margin: 1.75rem 0 .5rem; }
header p { margin: 0; color: var(--dim); overflow-wrap: anywhere; }
header .when { margin-left: auto; font-size: .85rem; }
.state { border-radius: 1rem; padding: .1rem .65rem; font-size: .85rem; font-weight: 600;
  white-space: nowrap; color: var(--good); background: var(--good-back); }
.state.bad { color: var(--bad); background: var(--bad-back); }
.problem { margin: .75rem 0 0; padding: .6rem .8rem; border-radius: .4rem; color: var(--bad);
  background: var(--bad-back); }
.tiles { display: grid; gap: .75rem; margin-top: 1.1rem;
  grid-template-columns: repeat(auto-fit, minmax(10.5rem, 1fr)); }
.tile, figure { margin: 0; padding: .7rem .85rem; border: 1px solid var(--edge);
  border-radius: .5rem; background: var(--card); }
.tile h3, figcaption { margin: 0; font-size: .85rem; font-weight: 500; color: var(--dim); }
.tile strong { display: block; font-size: 1.55rem; font-weight: 600; line-height: 1.3; }
.tile small { color: var(--dim); }
.plots { display: grid; gap: .75rem; grid-template-columns: 1fr 1fr; }
figcaption { display: flex; flex-wrap: wrap; gap: 0 1rem; }
figcaption b { flex: 1 1 auto; color: var(--text); }
svg { display: block; width: 100%; height: 5.5rem; margin-top: .4rem; }
path { fill: none; vector-effect: non-scaling-stroke; }
.grid { stroke: var(--edge); stroke-width: 1; }
.line { stroke-width: 1.8; stroke-linejoin: round; }
.first { stroke: var(--first); }
.second { stroke: var(--second); stroke-dasharray: 5 3; }
.scale { display: flex; justify-content: space-between; font-size: .75rem; color: var(--dim); }
.key { display: inline-block; width: 1.3rem; margin-right: .35rem; vertical-align: middle;
  border-top: 2px solid var(--first); }
.key.second { border-top: 2px dashed var(--second); }
.table { overflow-x: auto; border: 1px solid var(--edge); border-radius: .5rem; }
table { border-collapse: collapse; width: 100%; }
th, td { padding: .4rem .7rem; text-align: left; white-space: nowrap; }
th { font-size: .8rem; font-weight: 500; color: var(--dim); background: var(--card); }
tr + tr td, thead + tbody td { border-top: 1px solid var(--edge); }
td.number, th.number { text-align: right; }
td.wide { white-space: normal; overflow-wrap: anywhere; }
.none { color: var(--dim); margin: .25rem 0; }
footer { margin-top: 1.75rem; font-size: .8rem; color: var(--dim); }
a { color: inherit; }
@media (max-width: 40rem) {
  body { padding: .85rem; }
  header .when { margin-left: 0; flex-basis: 100%; }
  .tiles { grid-template-columns: 1fr 1fr; gap: .5rem; }
  .tile strong { font-size: 1.3rem; }
  .plots { grid-template-columns: 1fr; }
  thead { display: none; }
  tr { display: block; padding: .45rem .75rem; }
  tr + tr { border-top: 1px solid var(--edge); }
  tr + tr td, thead + tbody td { border-top: 0; }
  td, td.number { display: flex; justify-content: space-between; gap: 1rem; padding: .1rem 0;
    white-space: normal; overflow-wrap: anywhere; text-align: right; }
  td::before { content: attr(data-label); color: var(--dim); flex-shrink: 0; text-align: left; }
  td:empty { display: none; }
}
"""
