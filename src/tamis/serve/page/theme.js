// A classic script in the head, so that the first paint is already in the theme that was chosen last time.
"use strict";
(() => {
  try {
    const theme = localStorage.getItem("tamis-theme");
    if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
  } catch {
    // storage may be forbidden: then the theme is the system's
  }
})();
