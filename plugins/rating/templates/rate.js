"use strict";
(() => {
  const first = (selector) => document.querySelector(selector);
  const rating = first("#rating");
  if (!rating) return;
  const { study, rater } = rating.dataset;

  const AHEAD = 3; // tasks that are here, with their pictures, before they are shown
  const LOOK = 250; // milliseconds before a new task takes an answer: a second tap is not one
  const PAST = 20; // tasks that undo goes back to
  const LONGEST_WAIT = 30000;
  const PATIENCE = 30000;
  const LATER = [401, 403, 408, 429]; // statuses of a server that is to be asked again

  const made = (name, properties = {}, ...content) => {
    const element = Object.assign(document.createElement(name), properties);
    element.append(...content);
    return element;
  };
  const button = (label, act, properties = {}) => made("button", { type: "button", className: "plain", onclick: act, ...properties }, label);
  const keyOf = ({ task_id, repeat }) => `${task_id} ${repeat}`;
  const plural = (n, word) => `${n} ${word}${n === 1 ? "" : "s"}`;

  // What the browser keeps through reloads, a key each, so that two windows of a rater take nothing from each other.
  const prefix = `plumbline ${JSON.stringify([study, rater])} `;
  const kept = new Map(); // the browser's storage may be full or off
  const keep = (name, value) => {
    kept.set(name, value);
    try { localStorage.setItem(prefix + name, JSON.stringify(value)); } catch { /* this page has it */ }
  };
  const drop = (name) => {
    kept.delete(name);
    try { localStorage.removeItem(prefix + name); } catch { /* it was not there */ }
  };
  try {
    for (const name of Object.keys(localStorage).filter((key) => key.startsWith(prefix))) {
      kept.set(name.slice(prefix.length), JSON.parse(localStorage.getItem(name)));
    }
  } catch { /* nothing was kept */ }
  const keptAs = (kind) => [...kept].filter(([name]) => name.startsWith(kind)).sort(([, a], [, b]) => a.at - b.at);

  // The server: away (no network, or it is down) and asked again later, or an answer of its own.
  class Away extends Error {}
  const ask = async (address, body) => {
    const sent = body && { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) };
    const response = await fetch(address, { ...sent, signal: AbortSignal.timeout(PATIENCE) }).catch(() => { throw new Away(); });
    if (response.status >= 500 || LATER.includes(response.status)) throw new Away();
    const text = await response.text().catch(() => { throw new Away(); });
    let content = { error: text };
    try { content = JSON.parse(text); } catch { /* a line of text */ }
    return { status: response.status, content };
  };
  const pause = (milliseconds) => new Promise((resolve) => {
    setTimeout(resolve, milliseconds);
    ["online", "given"].forEach((event) => addEventListener(event, resolve, { once: true }));
  });

  // Pictures, decoded before they are shown.
  class Gone extends Error {}
  const load = async (address) => {
    for (let wait = 1000; ; wait = Math.min(2 * wait, LONGEST_WAIT)) {
      const image = made("img", { src: address });
      try { await image.decode(); return image; } catch { /* why, is asked */ }
      try {
        const { status, content } = await ask(address);
        throw new Gone(status === 200 ? "this browser cannot show it" : content.error);
      } catch (error) {
        if (!(error instanceof Away)) throw error;
      }
      tell("away");
      await pause(wait);
    }
  };
  const loads = new Map();
  const picture = (address) => {
    if (!loads.has(address)) {
      const loading = load(address);
      loading.catch(() => {}); // told where it is shown
      loads.set(address, loading);
    }
    return loads.get(address);
  };
  const addresses = (task) => [...task.pictures, ...task.sources];

  // Tasks: the first of the queue is shown; the last of the past is what undo goes back to.
  const queue = [];
  const past = kept.get("past") ?? [];
  const answered = new Set(keptAs("answer ").map(([, { body }]) => keyOf(body)));
  const refused = new Set(); // tasks that the server would serve again
  const known = (task) => answered.has(keyOf(task)) || refused.has(keyOf(task)) || queue.some((other) => keyOf(other) === keyOf(task));
  let done = 0;
  let total = 0;
  let minutes = null;
  let finished = false;

  const fill = async () => {
    if (queue.length >= AHEAD) return;
    const { status, content } = await ask(`/tasks?${new URLSearchParams({ rater, count: Math.min(AHEAD + refused.size, 20) })}`);
    if (status !== 200) { stop(content.error); return; }
    queue.push(...content.filter((task) => !known(task)));
    if (content.length) {
      done = content[0].done + keptAs("answer ").filter(([, { body }]) => !body.revision).length;
      ({ total, remaining_minutes: minutes } = content[0]);
    }
    finished = !queue.length;
    queue.flatMap(addresses).forEach(picture);
    if (!shown || !queue.includes(shown)) show();
    progress();
  };

  // Answers go in their order; the same answer sent twice is kept once.
  const post = async (name, { body, task }) => {
    const { status, content } = await ask("/answers", body);
    if (status !== 200 && status !== 201) {
      keep(name.replace("answer", "refused"), { at: Date.now(), body, task, why: content.error, other: content.kept });
      refused.add(keyOf(body));
      showRefused();
      if (status === 409 && !content.kept) queue.length = 0; // of an older version
    }
    drop(name);
  };
  let busy = false;
  let again = false;
  const sync = async () => {
    again = true;
    dispatchEvent(new Event("given"));
    if (busy) return;
    busy = true;
    for (let wait = 1000; again; ) {
      again = false;
      try {
        for (let [next] = keptAs("answer "); next; [next] = keptAs("answer ")) await post(...next);
        tell();
        await fill();
        wait = 1000;
      } catch (error) {
        if (!(error instanceof Away)) { stop(String(error)); throw error; }
        tell("away");
        await pause(wait);
        wait = Math.min(2 * wait, LONGEST_WAIT);
        again = true;
      }
    }
    busy = false;
  };

  // How long a rater looked: without the time in which the page was hidden.
  let since = 0;
  let looked = 0;
  const seconds = () => Math.round((looked + (document.hidden ? 0 : performance.now() - since)) / 100) / 10;
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) looked += performance.now() - since;
    else since = performance.now();
  });

  // The templates: the answers of one press, and how an answer of several parts is drawn and read.
  const pairs = (task) => [0, 1].map((place) => ["ab"[task.shown[place]], "AB"[place], "ab"[place], "", ["ArrowLeft", "ArrowRight"][place]]);
  const PICK = {
    keys: "A or ← first, B or → second, T tie",
    choices: (task) => { const [a, b] = pairs(task); return [a, ["tie", "Tie", "t", ""], b]; },
  };
  // A grade is answered by its digit, and 10 by 0.
  const graded = ({ grades }) => ({
    keys: `${grades[0][0]} to ${grades.at(-1)[0]} answer${grades.at(-1)[0] > 9 ? ", 10 by 0" : ""}`,
    choices: () => grades.map(([grade, anchor]) => [grade, String(grade), String(grade % 10), anchor]),
  });
  const TEMPLATES = {
    side_by_side: PICK,
    vote: PICK,
    words: {
      how: "Tap a word once if the image does not show it, twice if you are unsure.",
      keys: "← and → go from word to word, Space marks one as wrong, then as unsure; Enter sends",
      draw: (task, given) => drawWords(task, given),
      take: { ArrowLeft: () => step(-1), ArrowRight: () => step(1) },
    },
    questions: {
      keys: "Y yes, N no, U unsure, S subjective, I invalid, C cannot tell; ↑ and ↓ go from question to question; Enter sends",
      draw: (task, given) => drawQuestions(task, given),
      take: {
        y: () => reply("yes"), n: () => reply("no"), u: () => reply("unsure"), s: () => reply("subjective"), i: () => reply("invalid"), c: () => reply("cannot_tell"),
        ArrowUp: () => go(-1), ArrowDown: () => go(1),
      },
    },
  };
  const WHOLE = [["unsure", "Unsure", "u"], ["cannot_tell", "Cannot tell", "c"]];

  // Words are tapped: wrong, then unsure, then neither.
  const MARKS = { false: "true", true: "mixed", mixed: "false" };
  const words = () => Array.from(document.querySelectorAll(".word"));
  const marked = (mark) => words().flatMap((word, place) => (word.getAttribute("aria-pressed") === mark ? [place] : []));
  const wordsAnswer = () => ({ wrong: marked("true"), unsure: marked("mixed") });
  const step = (by) => {
    const all = words();
    const place = all.indexOf(document.activeElement);
    all[place < 0 ? 0 : Math.min(Math.max(place + by, 0), all.length - 1)]?.focus();
  };
  const drawWords = (task, given) => {
    const send = button("", () => give(wordsAnswer()), { className: "choice send" });
    const count = () => {
      const { wrong, unsure } = wordsAnswer();
      const counts = [wrong.length && `${wrong.length} wrong`, unsure.length && `${unsure.length} unsure`].filter(Boolean);
      send.textContent = counts.length ? `Send: ${counts.join(", ")}` : "Every word is shown";
    };
    const mark = ({ currentTarget: word }) => { word.setAttribute("aria-pressed", MARKS[word.getAttribute("aria-pressed")]); count(); };
    const text = made("p", { className: "text", dir: "auto" });
    task.words.forEach((word, place) => {
      const tapped = button(word, mark, { className: "word" });
      tapped.setAttribute("aria-pressed", given?.wrong?.includes(place) ? "true" : given?.unsure?.includes(place) ? "mixed" : "false");
      text.append(tapped, " ");
    });
    first("#answers").replaceChildren(text);
    count();
    return send;
  };

  // Questions: the first without an answer is asked now, until another has the focus.
  const REPLIES = [["yes", "Yes"], ["no", "No"], ["unsure", "Unsure"], ["subjective", "Subjective"], ["invalid", "Invalid"], ["cannot_tell", "Cannot tell"]];
  const asked = () => Array.from(document.querySelectorAll(".asked"));
  const openQuestions = () => asked().filter((question) => !question.querySelector(":checked"));
  const questionNow = () => document.activeElement.closest(".asked") ?? openQuestions()[0];
  const lookAt = (question) => {
    asked().forEach((other) => other.classList.toggle("now", other === question));
    (question ? question.querySelector(":checked") ?? question.querySelector("input") : first(".send")).focus();
  };
  const go = (by) => {
    const all = asked();
    lookAt(all[Math.min(Math.max(all.indexOf(questionNow()) + by, 0), all.length - 1)]);
  };
  const reply = (value) => {
    const question = questionNow();
    if (!question) return;
    question.querySelector(`[value=${value}]`).checked = true;
    lookAt(openQuestions()[0]);
  };
  const sendQuestions = () => {
    const [open] = openQuestions();
    if (open) { lookAt(open); say("This question has no answer yet."); return; }
    give(Object.fromEntries(asked().map((question) => [question.dataset.id, question.querySelector(":checked").value])));
  };
  const drawQuestions = (task, given) => {
    const fields = task.questions.map(({ question_id, text }, place) => {
      const replies = REPLIES.map(([value, label]) => made(
        "label", {}, made("input", { type: "radio", name: `question-${place}`, value, checked: given?.[question_id] === value }), made("span", {}, label),
      ));
      const field = made("fieldset", { className: "asked" }, made("legend", { dir: "auto" }, text), made("div", {}, ...replies));
      field.dataset.id = question_id;
      field.addEventListener("focusin", () => asked().forEach((other) => other.classList.toggle("now", other === field)));
      return field;
    });
    first("#answers").replaceChildren(...fields);
    openQuestions()[0]?.classList.add("now");
    return button("Send", sendQuestions, { className: "choice send" });
  };

  // A task is shown: its picture is here already, and it takes an answer after a moment.
  let shown = null;
  let ready = false;
  const figures = (task, images) => {
    const one = task.pictures.length === 1;
    const results = task.pictures.map((_, place) => {
      const name = one ? "The image" : `Image ${"AB"[place]}`;
      const image = Object.assign(images[place], { alt: name });
      const wipe = task.sources.length ? [slider(task.sources[0], name)] : [];
      return made("figure", {}, made("figcaption", { hidden: one && !wipe.length }, one ? "Result" : "AB"[place]), made("div", { className: "pair" }, image), ...wipe);
    });
    const sources = images.slice(task.pictures.length).map((image) => made(
      "figure", {}, made("figcaption", {}, "Source"), Object.assign(image, { alt: "The source of the edit" }),
    ));
    return [...sources, ...results];
  };
  const slider = (address, name) => {
    const range = made("input", { type: "range", min: 0, max: 100, step: 5, value: 0, ariaLabel: `Source over: ${name}` });
    range.dataset.address = address;
    return made("label", { className: "wipe" }, "source ", range);
  };
  const control = ([value, label, key, hint, arrow], given) => {
    const press = button(label, () => give(value), { className: hint === undefined ? "plain" : "choice" });
    if (hint) press.append(made("small", {}, hint));
    press.dataset.keys = JSON.stringify([key, arrow]);
    press.setAttribute("aria-keyshortcuts", [key, arrow].filter(Boolean).join(" "));
    if (given !== undefined) press.setAttribute("aria-pressed", String(given === value));
    return press;
  };
  const enable = (on) => {
    ready = on;
    document.querySelectorAll("#choices button, #whole button, .word, .asked").forEach((one) => { one.disabled = !on; });
    rating.setAttribute("aria-busy", String(!on && !finished));
  };
  const show = async () => {
    const task = shown = queue[0] ?? null;
    const template = task?.grades.length ? graded(task) : TEMPLATES[task?.template];
    rating.dataset.template = task?.template ?? "";
    rating.classList.toggle("wide", task?.pictures.length + task?.sources.length > 1);
    first("#moves").hidden = !task && !past.length;
    first("#undo").disabled = !past.length;
    first("#leave").hidden = !task?.given;
    first("#noting").hidden = first("#help").hidden = !task;
    ["#pictures", "#answers", "#choices", "#whole"].forEach((part) => first(part).replaceChildren());
    first("#prompt").textContent = task && task.template !== "words" ? task.prompt : "";
    first("#how").textContent = template?.how ?? "";
    first("#question").textContent = task?.asks ?? (finished ? `Thank you, ${rater}: nothing is left to rate.` : "Loading…");
    if (!task) { enable(false); return; }
    const given = task.given?.answer;
    first("#note").value = task.given?.note ?? "";
    first("#noting").open = false;
    noted();
    first("#keys").textContent = `${template.keys}. ${template.take?.u ? "" : "U unsure, C cannot tell. "}Z undo, M note.`;
    const send = template.draw?.(task, given);
    const row = template.choices ? template.choices(task).map((choice) => control(choice, given)) : [send];
    first("#choices").append(...row);
    first("#whole").append(...WHOLE.map((choice) => control(choice, given)));
    enable(false);
    first("#question").focus({ preventScroll: true });
    scrollTo(0, 0);
    const prompt = first("#prompt");
    prompt.tabIndex = prompt.scrollHeight > prompt.clientHeight ? 0 : -1;
    try {
      const images = await Promise.all(addresses(task).map(picture));
      if (shown !== task) return;
      first("#pictures").replaceChildren(...figures(task, images));
      tell();
    } catch (error) {
      if (!(error instanceof Gone)) throw error;
      if (shown === task) leaveOut(task, error.message);
      return;
    }
    since = performance.now();
    looked = 0;
    setTimeout(() => { if (shown === task) enable(true); }, LOOK);
    const wanted = new Set([...queue, ...past.slice(-AHEAD)].flatMap(addresses));
    [...loads.keys()].filter((address) => !wanted.has(address)).forEach((address) => loads.delete(address));
  };
  const leaveOut = (task, why) => {
    refused.add(keyOf(task));
    queue.splice(queue.indexOf(task), 1);
    say(`An image was left out: ${why}`);
    show();
    sync();
  };

  // An answer is kept in the browser first, and the next task is shown before the server has it.
  const give = (answer) => {
    if (!ready) return;
    ready = false;
    const { given, ...task } = queue.shift();
    const note = first("#note").value.trim();
    const isNew = JSON.stringify([given?.answer, given?.note]) !== JSON.stringify([answer, note]);
    const revision = given ? given.revision + isNew : 0;
    if (isNew) {
      const { task_id, repeat, version } = task;
      keep(`answer ${keyOf(task)} ${revision}`, { at: Date.now(), task, body: { task_id, repeat, revision, version, rater, answer, note, seconds: seconds() } });
    }
    if (!given) done += 1;
    answered.add(keyOf(task));
    past.push({ ...task, given: { answer, note, revision } });
    move();
  };
  const move = () => {
    past.splice(0, past.length - PAST);
    keep("past", past);
    finished = false;
    if (!first("#state").className) say("");
    show();
    progress();
    sync();
  };
  const undo = () => {
    if (!past.length) return;
    queue.unshift(past.pop());
    move();
    say("This is your earlier answer; a new answer replaces it.");
  };
  const leave = () => {
    past.push(queue.shift());
    move();
  };

  // What is told.
  const say = (line, kind = "") => {
    const state = first("#state");
    if (state.textContent !== line) state.textContent = line;
    state.className = kind;
  };
  let wasAway = false;
  const tell = (kind = "") => {
    const waiting = keptAs("answer ").length;
    if (kind) say(`The server does not answer. ${waiting ? `${plural(waiting, "answer")} saved in this browser, to be sent later. ` : ""}${queue.length ? "You can go on." : ""}`, kind);
    else if (wasAway && !waiting) say("The server answers again, and all answers are saved.");
    wasAway = Boolean(kind) || (wasAway && waiting > 0);
  };
  const stop = (why) => {
    queue.length = 0;
    show();
    first("#question").textContent = "There is nothing to rate here now.";
    say(why, "away");
  };
  const progress = () => {
    const bar = first("#progress");
    bar.max = Math.max(total, 1);
    bar.value = finished ? bar.max : done;
    const time = minutes === null || finished ? "" : minutes < 1 ? ", less than a minute left" : `, about ${plural(Math.round(minutes), "minute")} left`;
    first("#left").textContent = total ? `${finished ? total : done} of ${total}${time}` : "";
  };
  const inWords = (answer, task) => {
    const places = { a: "AB"[task.shown?.indexOf(0)], b: "AB"[task.shown?.indexOf(1)], tie: "a tie" };
    if (typeof answer !== "object") return (places[answer] ?? String(answer)).replace("_", " ");
    if (answer.wrong) return `wrong: ${answer.wrong.map((place) => task.words[place]).join(" ") || "no word"}`;
    return Object.values(answer).join(", ").replaceAll("_", " ");
  };
  const showRefused = () => {
    first("#refused").replaceChildren(...keptAs("refused ").map(([name, { body, task, why, other }]) => {
      const dismiss = () => { drop(name); showRefused(); };
      const send = () => {
        const revision = other ? other.revision + 1 : body.revision;
        keep(`answer ${keyOf(body)} ${revision}`, { at: Date.now(), task, body: { ...body, revision } });
        dismiss();
        sync();
      };
      const line = other ? `Another answer was saved: ${inWords(other.answer, task)}. Yours was: ${inWords(body.answer, task)}.` : `Your answer (${inWords(body.answer, task)}) was not kept: ${why}`;
      const [mine, others] = other ? ["Keep mine", "Keep the other"] : ["Send it again", "Leave it"];
      return made("li", {}, made("b", { dir: "auto" }, task.prompt), made("br"), line, made("br"), button(mine, send), button(others, dismiss));
    }));
  };

  // Keys, wherever the focus is, but for text and sliders.
  const openNote = () => { first("#noting").open = true; first("#note").focus(); };
  const noted = () => first("#noting").classList.toggle("noted", first("#note").value.trim() !== "");
  const pressed = (key) => Array.from(document.querySelectorAll("#controls [data-keys]")).find((one) => JSON.parse(one.dataset.keys).includes(key));
  const actOn = (key, target) => {
    const taken = TEMPLATES[shown?.template]?.take?.[key];
    if (taken) return ready ? taken : null;
    if (key === "z") return undo;
    if (!shown) return null;
    if (key === "m") return openNote;
    if (key === "Enter") return target.matches("button:not(.word), [type=checkbox], summary, a") ? null : () => first(".send")?.click();
    const press = pressed(key);
    return press ? () => press.click() : null;
  };
  addEventListener("keydown", (event) => {
    const { target } = event;
    if (target.matches("textarea")) {
      if (event.key === "Escape") first("#question").focus();
      return;
    }
    if (!first("#listens").checked || event.ctrlKey || event.metaKey || event.altKey || event.isComposing || target.matches("[type=range]")) return;
    const act = actOn(event.key.length === 1 ? event.key.toLowerCase() : event.key, target);
    if (!act) return;
    event.preventDefault();
    if (!event.repeat) act();
  });
  first("#note").addEventListener("input", noted);
  first("#undo").addEventListener("click", undo);
  first("#leave").addEventListener("click", leave);
  showRefused();
  sync();
})();
