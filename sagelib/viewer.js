"use strict";
// One Pane per run. Text from the data only ever becomes text nodes (el() below): nothing here builds markup from strings.
const ROW = 22, WIDTH = {step: 44, family: 150, scenario: 80, task: 90, position: 40, copy: 46, solved: 60, outcome: 72, penalty: 70, generation: 46, r: 46, R: 46, stop: 95, called: 160, made: 160};
const HEAD = {position: "pos", generation: "gen", A: "adv"};
const BLANK = "\u2013";

function el(tag, cls, ...children) {
  const node = document.createElement(tag);
  if (cls) node.className = cls;
  for (const child of children) node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  return node;
}
function shown(value) {
  if (value === null || value === undefined || value === "") return BLANK;
  if (typeof value === "boolean") return value ? "yes" : "no";
  return typeof value === "number" ? String(Math.round(value * 1000) / 1000) : value;
}
function percent(share) { return share === null ? BLANK : String(Math.round(100 * share)); }
async function unpack(id) {
  const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), c => c.charCodeAt(0));
  return JSON.parse(await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text());
}
function mean(values) {
  const known = values.filter(v => v !== null);
  return known.length ? known.reduce((a, b) => a + Number(b), 0) / known.length : null;
}

// "stop=max_turns R>1 called=add word": each part must hold. A part without = < > is text to find anywhere in the row.
function compile(text, columns) {
  return text.split(/\s+/).filter(Boolean).map(word => {
    const match = word.match(/^(\w+)(!=|<=|>=|=|<|>)(.*)$/), at = match ? columns.indexOf(match[1]) : -1;
    if (at < 0) return row => row.some(v => typeof v !== "boolean" && String(v).toLowerCase().includes(word.toLowerCase()));
    const [, , sign, value] = match, wanted = Number(value);
    return row => {
      const cell = row[at], is = typeof cell === "number" ? cell === wanted
        : typeof cell === "string" ? cell.split(" ").concat(cell).includes(value) : shown(cell) === value;
      if (sign === "=") return is;
      if (sign === "!=") return !is;
      if (typeof cell !== "number") return false;
      return {"<": cell < wanted, ">": cell > wanted, "<=": cell <= wanted, ">=": cell >= wanted}[sign];
    };
  });
}

class Pane {
  constructor(run, number, app) {
    Object.assign(this, {run, number, app, order: null, sort: null, down: false, open: null, cache: new Map()});
    this.at = Object.fromEntries(run.columns.map((name, i) => [name, i + 3]));   // a row begins with part, chain, position
    const parts = ["generation", "usage", "chain", "penalty"];
    this.columns = run.columns.filter(name => this.column(name).some(v => v !== null && v !== "" && !(v === 0 && parts.includes(name))));
    this.numeric = new Set(run.columns.filter(name => this.column(name).some(v => typeof v === "number")));
    this.maxA = Math.max(1e-9, ...this.column("A").map(v => Math.abs(v || 0)).filter(Number.isFinite));
    this.count = el("p", "note");
    this.body = el("div");
    this.heads = el("div", "heads");
    this.table = el("div", "table", this.heads, this.body);
    this.detail = el("div", "detail");
    this.node = el("section", "pane", el("h1", "", run.title), el("p", "note", this.summary()), this.count, this.table, this.detail);
    this.table.addEventListener("scroll", () => this.draw());
    this.table.tabIndex = 0;
    this.table.addEventListener("keydown", e => this.key(e));
    this.filter("");
  }
  column(name) { return this.run.rows.map(r => r[this.at[name]]); }
  value(row, name) { return row[this.at[name]]; }
  summary() {
    const last = Math.max(...this.column("position"));
    const by = p => this.run.rows.filter(r => this.value(r, "position") === p);
    const words = [`${this.run.rows.length} episodes`, `solved ${percent(mean(this.run.rows.filter(r => this.value(r, "r") !== null).map(r => this.value(r, "solved"))))}%`];
    for (let p = 1; p <= last; p++) {
      const R = mean(by(p).map(r => this.value(r, "R"))), used = mean(by(p).map(r => this.value(r, "called") !== ""));
      words.push(`task ${p}: ` + (R === null ? "" : `mean R ${shown(R)}, `) + `${percent(used)}% call a skill`);
    }
    const f = this.run.facts;
    return [["method", "world", "seed", "profile"].filter(k => k in f).map(k => `${k} ${f[k]}`).join(", "),
      this.run.credit ? `credit ${this.run.credit}` : "", ...words].filter(Boolean).join(" | ");
  }
  filter(text) {
    const names = this.run.columns, tests = compile(text, names);
    this.order = this.run.rows.map((_, i) => i);
    if (tests.length) this.order = this.order.filter(i => { const row = this.run.rows[i].slice(3); return tests.every(t => t(row)); });
    this.arrange();
  }
  arrange() {
    if (this.sort) {
      const at = this.at[this.sort], rows = this.run.rows, sign = this.down ? -1 : 1;
      this.order.sort((a, b) => {
        const x = rows[a][at], y = rows[b][at];
        if (x === null || y === null) return (x === null) - (y === null) || a - b;   // nothing is last, in both directions
        return (x < y ? -sign : x > y ? sign : 0) || a - b;
      });
    } else this.order.sort((a, b) => a - b);
    this.count.textContent = `${this.order.length} of ${this.run.rows.length} episodes`;
    this.body.style.height = this.order.length * ROW + "px";
    this.header();
    this.draw();
  }
  header() {
    this.grid = this.columns.map(n => (WIDTH[n] || 62) + "px").join(" ");
    this.heads.style.gridTemplateColumns = this.grid;
    this.heads.replaceChildren(...this.columns.map(name => {
      const mark = name === this.sort ? (this.down ? " \u25bc" : " \u25b2") : "";
      const cell = el("span", this.numeric.has(name) ? "num" : "", (HEAD[name] || name) + mark);
      cell.title = "sort by " + name;
      cell.onclick = () => {
        this.down = this.sort === name ? !this.down : false;
        this.sort = name;
        this.arrange();
      };
      return cell;
    }));
  }
  draw() {   // only the rows in sight exist in the document
    const first = Math.max(0, Math.floor(this.table.scrollTop / ROW) - 5), many = Math.ceil((this.table.clientHeight || 300) / ROW) + 10;
    this.body.replaceChildren(...this.order.slice(first, first + many).map((index, i) => {
      const row = this.run.rows[index], node = el("div", "row" + (index === this.open ? " open" : "") + (this.value(row, "solved") ? " good" : ""));
      node.style.top = (first + i + 1) * ROW + "px";
      node.style.gridTemplateColumns = this.grid;
      node.append(...this.columns.map(name => {
        const v = this.value(row, name), cell = el("span", name + (this.numeric.has(name) ? " num" : ""), shown(v));
        if (name === "A" && v) cell.style.background = this.colour(v);
        if (typeof v === "string" && v.length > 12) cell.title = v;
        return cell;
      }));
      node.onclick = () => this.app.select(this, index);
      return node;
    }));
  }
  key(event) {
    const step = {ArrowDown: 1, ArrowUp: -1}[event.key], at = this.order.indexOf(this.open) + step;
    if (!step || !(at in this.order)) return;
    event.preventDefault();
    this.app.select(this, this.order[at]);
  }
  colour(A) {
    const alpha = (0.12 + 0.55 * Math.min(1, Math.abs(A) / this.maxA)).toFixed(2);
    return A > 0 ? `rgba(30,160,70,${alpha})` : `rgba(220,60,40,${alpha})`;
  }
  async show(index) {
    this.open = index;
    const row = this.run.rows[index], id = `part-${this.number}-${row[0]}`;
    if (!this.cache.has(id)) {
      if (this.cache.size > 8) this.cache.clear();
      this.cache.set(id, unpack(id));
    }
    const place = this.order.indexOf(index) * ROW, top = this.table.scrollTop;
    if (place >= 0 && (place < top || place > top + this.table.clientHeight - 3 * ROW)) this.table.scrollTop = Math.max(0, place - 100);
    this.draw();
    const part = await this.cache.get(id);
    if (this.open === index) this.detail.replaceChildren(...new Detail(this, row, part[row[1]][row[2]]).nodes());
  }
  twin(row) {   // the same task, position and copy; of several steps the nearest
    const same = ["task", "position", "copy"], step = this.at.step;
    const far = r => Math.abs((r[step] || 0) - (row.step || 0));
    let best = null;
    this.run.rows.forEach((r, i) => {
      if (!same.every(n => this.value(r, n) === row[n])) return;
      if (best === null || far(r) < far(this.run.rows[best])) best = i;
    });
    return best;
  }
}

class Detail {
  constructor(pane, row, data) { Object.assign(this, {pane, row, data}); }
  get(name) { return this.pane.value(this.row, name); }
  nodes() {
    const d = this.data;
    const facts = this.pane.columns.filter(n => !["called", "made"].includes(n)).map(n => el("span", "", el("b", "", n), " " + shown(this.get(n))));
    const out = [el("h2", "", "Episode"), el("p", "instruction", d.instruction), el("div", "facts", ...facts), this.sum()];
    if (d.failures.length) out.push(el("p", "note", "unit tests that failed:"), el("pre", "error", d.failures.join("\n")));
    out.push(el("h2", "", "Turns"), ...d.turns.map((t, i) => this.turn(t, i)));
    if (!d.turns.length) out.push(el("p", "note", "no reply was sampled"));
    out.push(el("h2", "", "What was trained"), ...this.tokens(), el("h2", "", "Skill library"), ...this.library());
    return out;
  }
  sum() {   // R = its parts, in the open
    const R = this.get("R");
    if (R === null) return el("p", "note sum", "no return was recorded (an evaluation, or the episode was not scored)");
    const named = ["outcome", "penalty", "generation", "usage", "chain"].filter(n => this.get(n) || n === "outcome");
    const A = this.get("A");
    return el("p", "note sum", `R = ${named.map(n => `${n} ${shown(this.get(n))}`).join(" + ")} = ${shown(R)};  `
      + `advantage A = R \u2212 mean of the group = ${shown(A)}` + (A === 0 ? " (teaches nothing)" : ""));
  }
  turn(t, i) {
    const lines = new Map(t.calls.map(([name, line, counts]) => [line, counts]));
    const node = el("div", "turn", el("b", "", `turn ${i + 1}`), ` ${t.finish === "length" ? "cut at the length limit, " : ""}${shown(t.seconds)} s in the engine `);
    for (const [name, line, counts] of t.calls) node.append(el("span", "tag called", `calls ${name} (line ${line})${counts ? "" : " - block failed, does not count"}`));
    if (!t.trained) node.append(el("span", "tag", "context only, not trained"));
    const cut = t.code === null ? -1 : t.text.indexOf(t.code);
    const thought = cut < 0 ? t.text : t.text.slice(0, cut).replace(/```[^\n`]*\n$/, "");
    if (thought.trim()) node.append(el("pre", "thought", thought.trim()));
    if (t.code !== null) {
      const pre = el("pre", "code");
      t.code.split("\n").forEach((text, n) => pre.append(lines.has(n + 1) ? el("span", "call" + (lines.get(n + 1) ? "" : " failed"), text) : text, "\n"));
      node.append(pre);
      const rest = cut < 0 ? "" : t.text.slice(cut + t.code.length).replace(/^\n?```/, "").trim();
      if (rest) node.append(el("pre", "thought rest", rest));
    }
    if (t.error !== null) node.append(el("pre", "error", t.error));
    if (t.observation && t.observation !== t.error) node.append(el("pre", "out", t.observation));
    return node;
  }
  tokens() {
    const d = this.data, A = this.get("A");
    const own = d.own.filter((_, i) => i % 2).reduce((a, b) => a + b, 0), all = d.own.reduce((a, b) => a + b, 0);
    const out = [el("p", "note", `${d.prompt_tokens} prompt tokens, then ${all}: ${own} sampled by the policy (underlined, `
      + (A === null ? "no advantage recorded" : A === 0 ? "advantage 0: not computed" : `coloured by the advantage ${shown(A)}`)
      + `), ${all - own} written by the world (grey, masked out of the loss)`)];
    if (!d.piece) {
      out.push(el("p", "note missing", "The single tokens are not shown: this run's tokenizer (policy/ or sft/) was not found. Whole replies instead:"));
      for (const t of d.turns) out.push(this.shade(el("pre", "tokens", el("span", "own", t.text)), A));
      return out;
    }
    const prompt = el("details", "", el("summary", "", "prompt"), el("pre", "", d.prompt)), pre = el("pre", "tokens");
    let at = 0, sampled = 0;
    d.own.forEach((length, i) => {
      for (const end = at + length; at < end; at++) {
        const span = el("span", i % 2 ? "own" : "world", this.pane.run.pieces[d.piece[at]]);
        if (i % 2) span.title = `p = ${shown(d.p[sampled++])}%`;
        pre.append(span);
      }
    });
    return [...out, prompt, this.shade(pre, A)];
  }
  shade(pre, A) {
    if (A) for (const span of pre.querySelectorAll(".own")) span.style.background = this.pane.colour(A);
    return pre;
  }
  library() {
    const d = this.data, out = [];
    if (d.dropped.length) out.push(el("p", "note", `stored, but failed to load here: ${d.dropped.join(", ")}`));
    for (const [name, what, lines] of d.diff) {
      const pre = el("pre", "diff");
      for (const line of lines) pre.append(el("span", line[0] === "+" ? "add" : line[0] === "-" ? "del" : "", line), "\n");
      out.push(el("p", "change", el("span", "tag", what), name), pre);
    }
    if (!d.diff.length) out.push(el("p", "note", "unchanged by this task"));
    const list = (title, skills) => el("div", "", el("p", "note", `${title}: ${Object.keys(skills).length} skills`),
      ...Object.entries(skills).map(([name, source]) => el("details", "", el("summary", "", name), el("pre", "code", source))));
    return [...out, el("div", "lib", list("before", d.before), list("after", d.after))];
  }
}

class App {
  constructor(runs) {
    this.panes = runs.map((run, i) => new Pane(run, i, this));
    this.search = el("input");
    this.search.type = "search";
    this.search.placeholder = "filter:  stop=max_turns  R>1  called!=  position=2  any text";
    this.search.oninput = () => this.panes.forEach(p => { p.table.scrollTop = 0; p.filter(this.search.value); });
    this.follow = el("input");
    this.follow.type = "checkbox";
    this.follow.checked = true;
    const both = runs.length > 1 ? [el("label", "", this.follow, "open the same task on the other side")] : [];
    const panes = el("div", "", ...this.panes.map(p => p.node));
    panes.id = "panes";
    document.getElementById("app").replaceChildren(el("div", "bar", this.search, ...both), panes);
    this.panes.forEach(p => p.draw());
  }
  async select(pane, index) {
    if (location.protocol === "file:") location.replace(`#${pane.number}.${index}`);
    const row = Object.fromEntries(pane.run.columns.map(n => [n, pane.value(pane.run.rows[index], n)]));
    const shown = [pane.show(index)];
    for (const other of this.panes) {
      const twin = other === pane || !this.follow.checked ? null : other.twin(row);
      if (twin !== null) shown.push(other.show(twin));
    }
    await Promise.all(shown);
  }
}

// The address may end in #SIDE.ROW (open that episode) or #?FILTER.
async function main() {
  const begun = performance.now();
  if (typeof DecompressionStream === "undefined") throw new Error("this browser is too old (no DecompressionStream): Chrome 80, Firefox 113, Safari 16.4 or newer");
  const app = new App(await unpack("head")), place = location.hash.match(/^#(\d+)\.(\d+)$/), ask = location.hash.match(/^#\?(.*)$/);
  if (ask) {
    app.search.value = decodeURIComponent(ask[1]);
    app.search.oninput();
  }
  const pane = app.panes[place ? Number(place[1]) : 0] || app.panes[0], index = place ? Number(place[2]) : pane.order[0];
  if (index in pane.run.rows) await app.select(pane, index);
  document.body.dataset.ready = Math.round(performance.now() - begun);
  document.body.dataset.loaded = Math.round(performance.now());
}
main().catch(error => document.getElementById("app").replaceChildren(el("p", "error", "The viewer stopped: " + error.message)));
