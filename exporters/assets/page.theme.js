"use strict";
/* Runs before anything is drawn, so that a dark page does not flash. */

/** @type {() => Theme} */
function storedTheme() {
  try {
    const stored = localStorage.getItem("pyprof-theme");
    if (stored === "light" || stored === "dark") return stored;
  } catch {
    // A page without storage follows the system.
  }
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

document.documentElement.dataset.theme = storedTheme();
// In a frame of the server's page, which has its own heading.
if (window.top !== window.self) document.documentElement.dataset.embedded = "";
