// Ask for the access token where the service needs one.

import { forgetToken, keepToken, keptToken } from "./api.js";

const DIALOG = `
  <form method="dialog">
    <h2 id="token-title">Access token</h2>
    <p class="alert" id="token-wrong" role="alert" hidden>That token is not right. Ask the person who runs the service.</p>
    <p class="small">The person who runs the service has it: a word, or a link to open.</p>
    <label for="token">Token</label>
    <div class="row">
      <input id="token" type="password" autocomplete="off" autocapitalize="off" spellcheck="false" required>
      <button type="button" id="token-show" aria-pressed="false">Show</button>
    </div>
    <label class="check"><input type="checkbox" id="token-remember"> Remember on this device</label>
    <p class="small">Everybody who uses this device can then use the service. Otherwise it is forgotten when this tab is closed.</p>
    <button class="primary">Continue</button>
  </form>`;

let asking = null;

/** Resolves once there is another token than the one that was refused, which is forgotten and named as wrong. */
export async function askToken({ token }) {
  if (!asking) {
    if (keptToken() !== token) return;
    forgetToken();
    asking = answered(token !== null).finally(() => (asking = null));
  }
  await asking;
}

function answered(wrong) {
  const dialog = document.createElement("dialog");
  dialog.id = "token-dialog";
  dialog.className = "token";
  dialog.setAttribute("aria-labelledby", "token-title");
  dialog.innerHTML = DIALOG;
  document.body.append(dialog);
  const [field, show, remember] = ["token", "token-show", "token-remember"].map((id) => document.getElementById(id));
  document.getElementById("token-wrong").hidden = !wrong;
  show.addEventListener("click", () => {
    const shown = field.type === "password";
    field.type = shown ? "text" : "password";
    show.setAttribute("aria-pressed", shown);
    show.textContent = shown ? "Hide" : "Show";
  });
  dialog.showModal();
  return new Promise((resolve) => {
    dialog.addEventListener("cancel", (event) => event.preventDefault());
    dialog.addEventListener("close", () => {
      keepToken(field.value.trim(), remember.checked);
      dialog.remove();
      resolve();
    });
  });
}
