(() => {
  // A note on an image: sent, and shown as everybody sees it from then on.
  const form = document.querySelector("#note");
  if (!form) return;
  const AUTHOR = "plumbline author";
  const said = form.querySelector("output");
  const { author, keep } = form.elements;
  try { author.value ||= localStorage.getItem(AUTHOR) || ""; } catch { /* the browser keeps nothing */ }
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    keep.disabled = true;
    said.textContent = "";
    try {
      const body = JSON.stringify(Object.fromEntries(new FormData(form)));
      const response = await fetch(form.getAttribute("action"), { method: "POST", headers: { "Content-Type": "application/json" }, body });
      if (!response.ok) throw new Error((await response.json().catch(() => ({}))).error || `the server answers ${response.status}`);
      try { localStorage.setItem(AUTHOR, author.value); } catch { /* it is asked for again */ }
      location.reload();
    } catch (error) {
      said.textContent = `Not saved: ${error.message}`;
      keep.disabled = false;
    }
  });
  form.hidden = false;
})();
