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

  // Lists with filters, of which a first screen is shown.
  const fits = (entry, wanted) =>
    (!wanted.generator || entry.generator === wanted.generator) &&
    (!wanted.skill || entry.skills.includes(wanted.skill)) &&
    (!(wanted.kind || wanted.metric) ||
      entry.reasons.some(([kind, metric]) => (!wanted.kind || kind === wanted.kind) && (!wanted.metric || metric === wanted.metric))) &&
    wanted.text.split(/\s+/).every((word) => entry.search.includes(word));
  all("form[data-list]").forEach((form) => {
    const list = document.getElementById(form.dataset.list);
    const entries = all(":scope > .entry", list).map((element) => ({
      element,
      generator: element.dataset.generator,
      reasons: JSON.parse(element.dataset.reasons || "[]"),
      skills: JSON.parse(element.dataset.skills),
      search: element.dataset.search,
    }));
    const more = first(`[data-more="${list.id}"]`);
    let whole = false;
    const show = () => {
      const values = Object.fromEntries(new FormData(form));
      const wanted = { ...values, text: (values.text || "").trim().toLowerCase() };
      const fitting = entries.filter((entry) => fits(entry, wanted));
      const shown = new Set((whole ? fitting : fitting.slice(0, Number(list.dataset.first))).map((entry) => entry.element));
      entries.forEach(({ element }) => { element.hidden = !shown.has(element); });
      first(`form[data-list="${list.id}"] output`).textContent = `${fitting.length} of ${entries.length} ${form.dataset.word}`;
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
  });

  // The source of an edit, drawn over its result as far as the slider goes.
  const draw = (slider, image, address) => {
    let before = image.parentElement.querySelector(".before");
    if (!before) {
      before = document.createElement("img");
      before.className = "before";
      before.alt = "";
      image.after(before);
    }
    if (before.getAttribute("src") !== address) before.src = address;
    before.style.clipPath = `inset(0 ${100 - slider.value}% 0 0)`;
    slider.setAttribute("aria-valuetext", `${slider.value}% source`);
  };
  const sourceOf = (slider) => slider.dataset.address || all("[data-source]", slider.closest(".entry"))[slider.dataset.place].src;
  addEventListener("input", ({ target: slider }) => {
    if (slider.matches("main .wipe input")) draw(slider, slider.closest(".wipe").parentElement.querySelector("img"), sourceOf(slider));
  });
  all("main .wipe").forEach((label) => {
    label.querySelector("input").value = 0;
    label.hidden = false;
  });

  // An image enlarged, with what is said of it; the arrow keys go on within its prompt, or within the gallery.
  const zoom = first("#zoom");
  if (zoom) {
    const SMALL = 160;
    const image = document.createElement("img");
    const wipe = first("#zoom .wipe");
    const slider = wipe.querySelector("input");
    let chosen = null;
    const made = (name, ...content) => {
      const element = document.createElement(name);
      element.append(...content);
      return element;
    };
    const frame = made("div", image);
    const own = (button) => button.parentElement.querySelector(".wipe input");
    const column = (article, line, place) => {
      const lists = all(`table[data-line="${line}"]`, article).map((table) => {
        const rows = Array.from(table.tBodies[0].rows).map((row) => {
          const line = made("li", made("span", ...row.cells[0].cloneNode(true).childNodes), made("span", ...row.cells[place].cloneNode(true).childNodes));
          line.className = row.cells[place].className;
          return line;
        });
        const summary = table.closest("details")?.querySelector("summary").textContent;
        const list = made("ul", ...rows);
        list.className = "said";
        return summary ? made("div", made("h3", summary), list) : list;
      });
      return [made("p", article.querySelector("h3").textContent), ...lists];
    };
    const about = (button) => {
      const article = button.closest("article");
      if (article) return column(article, button.closest("table").dataset.line, button.closest("th").cellIndex);
      return all(".why, .prompt, .scores, details", button.closest(".card")).map((part) => part.cloneNode(true));
    };
    const near = (button) => all("[data-zoom]", button.closest("article") || button.closest(".cards")).filter((other) => other.offsetParent);
    const show = (button) => {
      chosen = button;
      const source = button.querySelector("img");
      const others = near(button);
      first("#zoom .bar").after(frame);
      image.src = source.src;
      image.alt = source.alt;
      frame.className = source.naturalWidth < SMALL ? "pair small" : "pair";
      wipe.hidden = !own(button);
      slider.value = own(button)?.value ?? 0;
      if (own(button)) draw(slider, image, sourceOf(own(button)));
      else frame.replaceChildren(image);
      const name = button.closest("th, .card").querySelector(":scope > bdi, .who bdi").cloneNode(true);
      first("#zoom-name").replaceChildren(made("b", name), ` ${others.indexOf(button) + 1} of ${others.length}`);
      first("#zoom-about").replaceChildren(...about(button));
      zoom.scrollTop = 0;
    };
    const step = (by) => {
      const others = near(chosen);
      show(others[(others.indexOf(chosen) + by + others.length) % others.length]);
    };
    all("[data-zoom]").forEach((button) => button.addEventListener("click", () => { show(button); zoom.showModal(); }));
    all("[data-step]", zoom).forEach((button) => button.addEventListener("click", () => step(Number(button.dataset.step))));
    first("#zoom-close").addEventListener("click", () => zoom.close());
    zoom.addEventListener("click", (event) => { if (event.target === zoom) zoom.close(); });
    zoom.addEventListener("close", () => chosen.focus());
    slider.addEventListener("input", () => draw(slider, image, sourceOf(own(chosen))));
    zoom.addEventListener("keydown", (event) => {
      if (event.target === slider) return;
      const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (by) { event.preventDefault(); step(by); }
    });
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
