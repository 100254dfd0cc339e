"use strict";
/* Which page is shown, its heading, keys, and who may see it. */

const PAGES = /** @type {Record<string, (place: Place) => Promise<Node[]>>} */ ({
  fleet: fleetPage,
  functions: functionsPage,
  builds: buildsPage,
  service: servicePage,
});
const TYPES = [["cpu", "processor time"], ["wall", "wall-clock time"], ["offcpu", "waits"], ["lock", "waits for locks"]];
let place = placeOfAddress();

/** @type {(title: string, facts: string) => void} */
function say(title, facts) {
  byId("title").textContent = title;
  byId("facts").textContent = facts;
  document.title = `${title} · pyprof`;
}

/** @type {(next: Place) => void} */
function goTo(next) {
  history.pushState(null, "", addressOf(next));
  show();
}

async function show() {
  place = placeOfAddress();
  /** @type {HTMLSelectElement} */ (byId("span")).value = String(place.span);
  /** @type {HTMLSelectElement} */ (byId("type")).value = place.type;
  forgetQuestions();
  const content = byId("content"), mine = place;
  content.ariaBusy = "true";
  try {
    const parts = await (PAGES[place.page] || fleetPage)(place);
    if (mine === place) content.replaceChildren(...parts);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") return;
    const isLocked = error instanceof Refusal && error.status === 401;
    if (isLocked) askForToken(error.message);
    content.replaceChildren(isLocked ? element("p", { className: "hint" }, "Reload the page to enter a token.") : errorElement(error));
  } finally {
    if (mine === place) content.ariaBusy = "false";
  }
}

/** @type {(why: string) => void} */
function askForToken(why) {
  const dialog = /** @type {HTMLDialogElement} */ (byId("login"));
  byId("login-why").textContent = why;
  if (!dialog.open) dialog.showModal();
}

async function enter() {
  const field = /** @type {HTMLInputElement} */ (byId("token"));
  try {
    await logIn(field.value);
    field.value = "";
    await show();
  } catch (error) {
    askForToken(error instanceof Error ? error.message : String(error));
  }
}

/** @type {(id: string, values: [string, string][], then: (value: string) => void) => void} */
function fillSelect(id, values, then) {
  const select = /** @type {HTMLSelectElement} */ (byId(id));
  select.append(...values.map(([value, text]) => element("option", { value }, text)));
  select.addEventListener("change", () => then(select.value));
}

/** @type {(page: string) => void} */
function goToPage(page) {
  goTo({ ...place, page, service: "", by: "", labels: {}, chosen: null, a: "", b: "" });
}

const KEYS = /** @type {Record<string, () => void>} */ ({
  1: () => goToPage("fleet"),
  2: () => goToPage("functions"),
  3: () => goToPage("builds"),
  s: () => byId("span").focus(),
});

function wire() {
  fillSelect("span", SPANS.map(([text, s]) => [String(s), text]), (value) => goTo({ ...place, span: Number(value), chosen: null }));
  fillSelect("type", /** @type {[string, string][]} */ (TYPES), (type) => goTo({ ...place, type }));
  byId("show-fleet").addEventListener("click", KEYS[1]);
  byId("show-functions").addEventListener("click", KEYS[2]);
  byId("show-builds").addEventListener("click", KEYS[3]);
  byId("theme").addEventListener("click", () => {
    const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    document.documentElement.dataset.theme = theme;
    localStorage.setItem("pyprof-theme", theme);
    show();
  });
  byId("login").addEventListener("close", enter);
  addEventListener("popstate", show);
  addEventListener("keydown", (event) => {
    const typing = event.target instanceof HTMLElement && /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (typing || event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS)) return;
    event.preventDefault();
    KEYS[event.key]();
  });
}

wire();
show();
