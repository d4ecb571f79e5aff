"use strict";
(() => {
  const box = document.querySelector("#refresh");
  if (!box) return;

  // The page's content is asked for again, while somebody looks and nothing in it has the focus or is selected.
  const isUsed = () => document.querySelector("#main").contains(document.activeElement) || !getSelection().isCollapsed;
  const refresh = async () => {
    if (!box.checked || document.hidden || isUsed()) return;
    const response = await fetch(location.href).catch(() => null);
    if (!response?.ok) return;
    const page = new DOMParser().parseFromString(await response.text(), "text/html");
    const content = page.querySelector("#main");
    if (content && content.innerHTML !== document.querySelector("#main").innerHTML) document.querySelector("#main").replaceWith(content);
  };
  setInterval(refresh, 1000 * Number(box.dataset.seconds));
  document.addEventListener("visibilitychange", refresh);
})();
