"use strict";
(() => {
  const all = (selector, within = document) => Array.from(within.querySelectorAll(selector));
  const first = (selector) => document.querySelector(selector);

  // Light or dark: the system's choice, until the button is pressed.
  const theme = first("#theme");
  const isDark = () =>
    (document.documentElement.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
  const nameTheme = () => { theme.textContent = isDark() ? "Light" : "Dark"; };
  if (theme) {
    theme.addEventListener("click", () => {
      document.documentElement.dataset.theme = isDark() ? "light" : "dark";
      nameTheme();
    });
    nameTheme();
    theme.hidden = false;
  }

  // Tables sort by the buttons in their heads.
  const collator = new Intl.Collator(undefined, { numeric: true });
  const valueOf = (row, column, isNumber) => {
    const cell = row.cells[column];
    const text = cell.dataset.value ?? cell.textContent.trim();
    if (!isNumber) return text;
    const value = parseFloat(text);
    return Number.isNaN(value) ? null : value;
  };
  const sortBy = (button) => {
    const head = button.closest("th");
    const table = head.closest("table");
    const isNumber = button.dataset.sort === "number";
    const before = head.getAttribute("aria-sort");
    const rank = isNumber && button.textContent !== "mean rank" ? "descending" : "ascending";
    const order = before ? (before === "ascending" ? "descending" : "ascending") : rank;
    const sign = order === "ascending" ? 1 : -1;
    const body = table.tBodies[0];
    const rows = Array.from(body.rows).map((row) => ({ row, value: valueOf(row, head.cellIndex, isNumber) }));
    rows.sort((a, b) => {
      if (a.value === null || b.value === null) return (a.value === null) - (b.value === null);
      return sign * (isNumber ? a.value - b.value : collator.compare(a.value, b.value));
    });
    all("th[aria-sort]", table).forEach((other) => other.removeAttribute("aria-sort"));
    head.setAttribute("aria-sort", order);
    body.append(...rows.map((one) => one.row));
  };
  all("button.sort").forEach((button) => button.addEventListener("click", () => sortBy(button)));

  // One metric at a time, where each has a panel of its own.
  const choose = (metric) => {
    all("[data-choose]").forEach((button) => button.setAttribute("aria-pressed", String(button.dataset.choose === metric)));
    all("[data-panel]").forEach((panel) => { panel.hidden = panel.dataset.panel !== metric; });
  };
  const choices = all("[data-choose]");
  if (choices.length) {
    all(".chooser").forEach((group) => { group.hidden = false; });
    choices.forEach((button) => button.addEventListener("click", () => choose(button.dataset.choose)));
    choose(choices[0].dataset.choose);
  }

  // The gallery: filters, and a first screen of it.
  const form = first("#filters");
  if (form) {
    const FIRST = 12;
    const cards = all("#cards > .card").map((card) => ({
      card,
      generator: card.dataset.generator,
      reasons: JSON.parse(card.dataset.reasons),
      skills: JSON.parse(card.dataset.skills),
      search: card.dataset.search,
    }));
    const more = first("#more");
    let whole = false;
    const fits = (one, wanted) =>
      (!wanted.generator || one.generator === wanted.generator) &&
      (!wanted.skill || one.skills.includes(wanted.skill)) &&
      one.reasons.some(([kind, metric]) => (!wanted.kind || kind === wanted.kind) && (!wanted.metric || metric === wanted.metric)) &&
      wanted.text.split(/\s+/).every((word) => one.search.includes(word));
    const show = () => {
      const values = Object.fromEntries(new FormData(form));
      const wanted = { ...values, text: (values.text || "").trim().toLowerCase() };
      const fitting = cards.filter((one) => fits(one, wanted));
      const shown = new Set((whole ? fitting : fitting.slice(0, FIRST)).map((one) => one.card));
      cards.forEach((one) => { one.card.hidden = !shown.has(one.card); });
      first("#found").textContent = `${fitting.length} of ${cards.length} images`;
      more.hidden = shown.size === fitting.length;
      more.textContent = `Show all ${fitting.length}`;
    };
    form.addEventListener("input", show);
    form.addEventListener("change", show);
    form.addEventListener("submit", (event) => event.preventDefault());
    form.addEventListener("reset", () => setTimeout(show));
    more.addEventListener("click", () => { whole = true; show(); });
    form.hidden = false;
    show();
  }

  // What is looked for in a store: a choice asks at once, and what is empty is not asked for.
  all("form[data-asks]").forEach((asking) => {
    all("select", asking).forEach((choice) => choice.addEventListener("change", () => asking.requestSubmit()));
    asking.addEventListener("formdata", ({ formData }) => {
      [...formData].forEach(([name, value]) => { if (value === "") formData.delete(name); });
    });
  });

  // On paper nothing opens: what the run stood on is open while printing.
  const opened = [];
  addEventListener("beforeprint", () => all("#health details:not([open])").forEach((one) => { one.open = true; opened.push(one); }));
  addEventListener("afterprint", () => opened.splice(0).forEach((one) => { one.open = false; }));
})();
