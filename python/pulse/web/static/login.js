// A token is exchanged for a cookie that scripts cannot read.

import { byId } from "./dom.js";

const form = /** @type {HTMLFormElement} */ (byId("login"));
const wrong = byId("wrong");

function complain(text) {
  wrong.textContent = text;
  wrong.hidden = false;
  /** @type {HTMLInputElement} */ (byId("token")).select();
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  wrong.hidden = true;
  try {
    const answer = await fetch(new URL("../login", import.meta.url), {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Pulse": "1" },
      body: JSON.stringify({ token: new FormData(form).get("token") }),
    });
    if (answer.ok) location.reload();
    else complain(answer.status === 401 ? "That token is not known here." : `The server answered ${answer.status}.`);
  } catch {
    complain("The server does not answer.");
  }
});
