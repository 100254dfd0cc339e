"use strict";
/* What the server is asked (docs/server.md, "The API"). All amounts are nanoseconds or counts, all moments seconds. */

/** A refusal: what the server says, and its name for it. */
class Refusal extends Error {
  /** @param {number} status @param {string} reason @param {string} text */
  constructor(status, reason, text) {
    super(text);
    this.status = status;
    this.reason = reason;
  }
}

/** @type {AbortController | null} */
let asked = null;

/** What was asked for the page before this one is not waited for. */
function forgetQuestions() {
  if (asked) asked.abort();
  asked = new AbortController();
}

/** @type {(path: string, words: Record<string, string | number | undefined>) => string} */
function apiAddress(path, words) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(words)) {
    if (value !== undefined && value !== "") query.set(name, String(value));
  }
  return `/api/v1/${path}?${query}`;
}

/**
 * The answer as a value. Throws Refusal, and AbortError where the page has changed.
 * @template T
 * @param {string} path
 * @param {Record<string, string | number | undefined>} words
 * @returns {Promise<T>}
 */
async function ask(path, words) {
  const answer = await fetch(apiAddress(path, words), { signal: asked ? asked.signal : null });
  if (answer.ok) return answer.json();
  throw await refusalOf(answer);
}

/** @type {(answer: Response) => Promise<Refusal>} */
async function refusalOf(answer) {
  try {
    const { reason, error, hint } = await answer.json();
    if (reason === "no_token") return new Refusal(answer.status, reason, String(error));
    const text = hint ? `${String(error).replace(/\.$/, "")}. Hint: ${hint}.` : String(error);
    return new Refusal(answer.status, String(reason), text);
  } catch {
    return new Refusal(answer.status, "", `the server answered ${answer.status}`);
  }
}

/** @type {(token: string) => Promise<void>} */
async function logIn(token) {
  const answer = await fetch("/login", { method: "POST", headers: { Authorization: `Bearer ${token}` } });
  if (!answer.ok) throw await refusalOf(answer);
}
