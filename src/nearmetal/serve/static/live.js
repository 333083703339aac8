// Replaces the part of the page that changes. The server has escaped it; scripts in it would not run (the page's
// policy lets no script in but this file).
"use strict";
{
  const part = document.getElementById("live");
  const note = document.getElementById("link");
  let tag = part.dataset.tag;

  const look = async () => {
    if (document.hidden) return;
    try {
      const answer = await fetch(part.dataset.source, { headers: { "If-None-Match": tag }, cache: "no-store" });
      if (answer.status === 304) {
        note.textContent = "";
      } else if (answer.ok) {
        const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
        part.replaceChildren(...fresh.body.childNodes);
        tag = answer.headers.get("ETag");
        note.textContent = "";
      } else {
        note.textContent = `The server answers ${answer.status}: what is shown may be old.`;
      }
    } catch {
      note.textContent = "The server does not answer: what is shown may be old.";
    }
  };

  setInterval(look, Number(part.dataset.every));
  document.addEventListener("visibilitychange", look);
}
