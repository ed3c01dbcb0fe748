"use strict";
(() => {
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const status = document.getElementById("status");
  const visible = (items) => [...items].filter((item) => !item.hidden);
  const tell = (words) => { if (status) status.textContent = words; };

  // Filters: an element with data-filtered is shown while every axis that it names has its value ticked.
  const axes = ["method", "dataset", "ipc", "inference", "network", "source"];
  const controls = document.querySelector(".controls");
  const columnBoxes = all("[data-column]");
  const shownColumns = () => new Set(columnBoxes.filter((b) => b.checked).map((b) => b.dataset.column));

  function filter() {
    const ticked = {};
    for (const axis of axes) {
      const boxes = all(`input[data-axis="${axis}"]`);
      if (boxes.length) ticked[axis] = new Set(boxes.filter((b) => b.checked).map((b) => b.value));
    }
    const dropped = (item) => axes.some((axis) => {
      const value = item.getAttribute(`data-${axis}`);
      return value !== null && ticked[axis] && !ticked[axis].has(value);
    });
    for (const item of all("[data-filtered]")) item.hidden = dropped(item);
    // A table with methods as columns: a heading with data-line is filtered with all cells below it.
    for (const sheet of all(".sheet")) {
      const table = sheet.querySelector("table");
      for (const head of all("th[data-line]", table.tHead)) {
        head.hidden = dropped(head);
        for (const row of table.tBodies[0].rows) row.cells[head.cellIndex].hidden = head.hidden;
      }
    }
    sheets();
    for (const block of all(".block")) {
      if (!all("tbody tr", block).some((row) => !row.hidden)) block.hidden = true;
    }
    const nothing = document.querySelector(".nothing");
    if (nothing) nothing.hidden = all(".block").some((block) => !block.hidden);
  }

  function sheets() {
    const shown = shownColumns();
    for (const sheet of all(".sheet")) {
      const table = sheet.querySelector("table");
      sheet.hidden = !shown.has(sheet.dataset.c) || !visible(table.tBodies[0].rows).length
        || !visible(all("th[data-line]", table.tHead)).length;
    }
  }

  function columns() {
    const shown = shownColumns();
    for (const cell of all(".block [data-c]")) cell.hidden = !shown.has(cell.dataset.c);
    sheets();
  }

  // Layouts: one of them is shown, unfolded; without a script all are there, folded.
  const layoutBoxes = all("[data-layouts] input");
  const layout = () => (layoutBoxes.find((b) => b.checked) || {}).value || "wide";
  function layOut() {
    for (const part of all(".layout")) {
      part.open = true;
      part.hidden = part.dataset.layout !== layout();
      part.querySelector("summary").hidden = true;
    }
  }

  function choose(which) {
    const first = new Set(all("th[data-shown]").map((th) => th.dataset.c));
    for (const box of columnBoxes) {
      const column = box.dataset.column;
      box.checked = which === "all" || (which === "shown" ? first.has(column) : which === column);
    }
    columns();
  }

  // Sorting: a line of published numbers stays below the measured line before it.
  function sort(th) {
    const row = th.parentNode, body = th.closest("table").tBodies[0];
    const at = [...row.children].indexOf(th);
    const falling = th.getAttribute("aria-sort") === "ascending";
    for (const other of row.children) other.removeAttribute("aria-sort");
    th.setAttribute("aria-sort", falling ? "descending" : "ascending");
    const groups = [];
    for (const line of body.rows) {
      if (line.dataset.published && groups.length) groups[groups.length - 1].push(line);
      else groups.push([line]);
    }
    const value = (group) => {
      const cell = group[0].children[at];
      if (!("c" in cell.dataset)) return cell.textContent.trim();
      return cell.dataset.v === undefined ? NaN : Number(cell.dataset.v);
    };
    const sign = falling ? -1 : 1;
    groups.sort((a, b) => {
      const x = value(a), y = value(b);
      if (typeof x === "string") return sign * x.localeCompare(y, undefined, { numeric: true });
      if (Number.isNaN(x) || Number.isNaN(y)) return Number.isNaN(x) - Number.isNaN(y);
      return sign * (x - y);
    });
    for (const group of groups) body.append(...group);
  }

  for (const th of all(".results thead th")) {
    const button = document.createElement("button");
    button.type = "button";
    button.append(...th.childNodes);
    button.addEventListener("click", () => sort(th));
    th.append(button);
  }

  // Commands.
  async function copy(words) {
    try {
      await navigator.clipboard.writeText(words);
    } catch {
      const area = document.createElement("textarea");
      area.value = words;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
    tell("Copied: " + words);
  }
  for (const table of all(".block .results")) {
    const head = document.createElement("th");
    head.scope = "col";
    head.className = "copies";
    head.textContent = "command";
    table.tHead.rows[0].append(head);
    for (const row of table.tBodies[0].rows) {
      const cell = row.insertCell();
      cell.className = "copies";
      if (!row.dataset.command) continue;
      const button = document.createElement("button");
      button.type = "button";
      button.className = "copy";
      button.textContent = "copy";
      button.title = row.dataset.command;
      const { method, inference, network, source } = row.dataset;
      const line = [method, inference, network, source].filter(Boolean).join(", ");
      button.setAttribute("aria-label", "Copy the command that makes this line: " + line);
      button.addEventListener("click", async () => {
        await copy(row.dataset.command);
        button.textContent = "copied";
        setTimeout(() => { button.textContent = "copy"; }, 1500);
      });
      cell.append(button);
    }
  }

  // Downloads: what is shown, as it is sorted.
  function shownBlocks() {
    return visible(all(".block")).map((block) => {
      const table = block.querySelector("table");
      return {
        dataset: block.dataset.dataset,
        ipc: block.dataset.ipc,
        heads: visible(all("th[data-c]", table.tHead)),
        lines: visible(table.tBodies[0].rows),
      };
    });
  }
  const cellOf = (line, head) => line.querySelector(`td[data-c="${head.dataset.c}"]`);

  function csv() {
    const quote = (value) => (/[",\n\r]/.test(value) ? `"${value.replace(/"/g, '""')}"` : value);
    const rows = [["dataset", "ipc", "method", "inference", "network", "source", "evaluator", "metric", "unit",
      "mean", "std", "n", "best", "second", "tied", "text"]];
    for (const block of shownBlocks()) {
      for (const line of block.lines) {
        for (const head of block.heads) {
          const cell = cellOf(line, head), d = cell.dataset;
          const flag = (tag) => (cell.querySelector(tag) ? "True" : "False");
          const words = cell.textContent.replace("~", "");
          rows.push([block.dataset, block.ipc, line.dataset.method, line.dataset.inference, line.dataset.network,
            line.dataset.published || line.dataset.source || "measured", head.dataset.evaluator, head.dataset.metric, head.dataset.unit || "",
            d.v || "", d.s || "", d.n || "", flag("b"), flag("u"), flag("i"), words]);
        }
      }
    }
    return rows.map((row) => row.map((v) => quote(String(v))).join(",")).join("\n") + "\n";
  }

  const special = { "\\": "\\textbackslash{}", "{": "\\{", "}": "\\}", "$": "\\$", "&": "\\&", "#": "\\#", "_": "\\_",
    "%": "\\%", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}", "<": "\\textless{}", ">": "\\textgreater{}",
    "|": "\\textbar{}", "[": "{[}", "*": "{*}", "±": "$\\pm$", "—": "---", "↑": "$\\uparrow$", "↓": "$\\downarrow$", "†": "$^{\\dagger}$" };
  const tex = (words) => words.replace(/\s+/g, " ").replace(/[\\{}$&#_%~^<>|[*±—↑↓†]/g, (c) => special[c]);

  // The lines of all blocks: a name for each, and its row in every block that has it.
  function shownLines(blocks) {
    const names = ["method", "inference", "network", "source"].filter(
      (name, i) => i === 0 || new Set(blocks.flatMap((b) => b.lines.map((l) => l.dataset[name]))).size > 1);
    const lines = new Map();
    blocks.forEach((block, b) => {
      for (const line of block.lines) {
        const { method, inference, network, published = "", source = "", line: configuration = "" } = line.dataset;
        const key = JSON.stringify([method, inference, network, published, source, configuration]);
        if (!lines.has(key)) {
          const labels = { method: published ? `${method} (${published})` : method, inference, network, source };
          lines.set(key, { labels: names.map((name) => tex(labels[name])), rows: [] });
        }
        lines.get(key).rows[b] = line;
      }
    });
    return [names, [...lines.values()]];
  }

  function texCell(line, head) {
    const cell = line && head && cellOf(line, head);
    if (!cell) return "";
    const main = tex(cell.firstElementChild.textContent);
    const tag = cell.firstElementChild.tagName;
    const rest = all("small", cell).map((s) => tex(s.textContent)).join("");
    const styled = tag === "B" ? `\\textbf{${main}}` : tag === "U" ? `\\underline{${main}}` : main;
    return styled + rest + (cell.querySelector("i") ? "$^{\\sim}$" : "");
  }

  // A tabular: names of the label columns, groups of columns as [heading, headings], rows of texts.
  function tabular(labels, groups, rows) {
    const line = (cells) => cells.join(" & ") + " \\\\";
    let at = labels.length + 1;
    const rules = groups.map(([, heads]) => `\\cmidrule(lr){${at}-${(at += heads.length) - 1}}`);
    const over = groups.map(([name, heads]) => `\\multicolumn{${heads.length}}{c}{${name}}`);
    return ["% needs \\usepackage{booktabs}", `\\begin{tabular}{${"l".repeat(labels.length)}${"c".repeat(at - labels.length - 1)}}`,
      "\\toprule", line([...labels.map(() => ""), ...over]), rules.join(""),
      line([...labels, ...groups.flatMap(([, heads]) => heads)]), "\\midrule",
      ...rows.map((row) => (typeof row === "string" ? row : line(row))), "\\bottomrule", "\\end{tabular}", ""].join("\n");
  }

  function wideLatex(blocks) {
    const [names, lines] = shownLines(blocks);
    const some = blocks.map((block, b) => [block, b]).filter(([block]) => block.heads.length);
    const groups = some.map(([block]) => [tex(`${block.dataset} ipc ${block.ipc}`), block.heads.map((h) => tex(h.textContent))]);
    const rows = lines.map((line) => [...line.labels,
      ...some.flatMap(([block, b]) => block.heads.map((head) => texCell(line.rows[b], head)))]);
    return tabular(names, groups, rows);
  }

  function paperLatex(blocks) {
    const [, lines] = shownLines(blocks);
    const heads = new Map(blocks.flatMap((block) => block.heads.map((head) => [head.dataset.c, tex(head.textContent)])));
    const groups = lines.map((line) => [line.labels.join(" / "), [...heads.values()]]);
    const rows = blocks.flatMap((block, b) => {
      const same = b > 0 && blocks[b - 1].dataset === block.dataset;
      const cells = lines.flatMap((line) => [...heads.keys()].map(
        (c) => texCell(line.rows[b], block.heads.find((head) => head.dataset.c === c))));
      const row = [same ? "" : tex(block.dataset), block.ipc, ...cells];
      return b > 0 && !same ? ["\\midrule", row] : [row];
    });
    return tabular(["data set", "ipc"], groups, rows);
  }

  const latex = () => (layout() === "paper" ? paperLatex : wideLatex)(shownBlocks());

  function download(name, type, words) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([words], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
    tell("Saved as " + name);
  }

  const actions = {
    reset() {
      for (const box of all("input[data-axis]")) box.checked = true;
      const select = document.getElementById("metric");
      if (select) select.value = "shown";
      choose("shown");
      filter();
      tell("");
    },
    csv: () => download("results.csv", "text/csv", csv()),
    latex: () => download("results.tex", "application/x-tex", latex()),
  };

  if (controls) {
    controls.hidden = false;
    if (matchMedia("(max-width:40rem)").matches) controls.open = false;
    controls.addEventListener("change", (event) => {
      if (event.target.matches("[data-axis]")) filter();
      else if (event.target.matches("[data-column]")) columns();
      else if (event.target.name === "layout") layOut();
      else if (event.target.id === "metric") choose(event.target.value);
    });
    controls.addEventListener("click", (event) => {
      const action = event.target.dataset && event.target.dataset.action;
      if (action) actions[action]();
    });
    choose("shown");
    filter();
    layOut();
  }

  // Coresets: a slider from the start to the end, in place of the list of snapshots.
  for (const card of all(".coreset")) {
    const between = card.querySelector(".between"), last = card.querySelector(".last");
    if (!between || !last) continue;
    const start = card.querySelector(".frame");
    const frames = [start, ...all(".frame", between), last].map((frame) => ({
      when: frame.querySelector(".when").textContent,
      href: frame.querySelector("use").getAttribute("href"),
      label: frame.querySelector("svg").getAttribute("aria-label"),
    }));
    between.hidden = true;
    const label = document.createElement("label");
    label.className = "slider";
    const range = document.createElement("input");
    Object.assign(range, { type: "range", min: 0, max: frames.length - 1, value: frames.length - 1 });
    const show = () => {
      const frame = frames[Number(range.value)];
      last.querySelector(".when").textContent = frame.when;
      last.querySelector("use").setAttribute("href", frame.href);
      last.querySelector("svg").setAttribute("aria-label", frame.label);
      last.querySelector("title").textContent = frame.label;
      range.setAttribute("aria-valuetext", frame.when);
    };
    range.addEventListener("input", show);
    label.append("start", range, "end");
    card.append(label);
    show();
  }

  // Paper shows everything that is folded.
  let opened = [];
  addEventListener("beforeprint", () => {
    opened = all("details:not([open])");
    for (const item of opened) item.open = true;
  });
  addEventListener("afterprint", () => { for (const item of opened) item.open = false; });
})();
