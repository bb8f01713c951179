// What the dashboard does beyond links and forms: news as they come, keys, and ticking many rows.
// Every page works without this file.
(() => {
  "use strict";
  const body = document.body;
  const one = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // --- News: one stream while the tab is seen; each event makes the live part fetch itself anew.

  const pace = one("#pace");
  let stream = null;
  let notBefore = 0;

  function say(text, kind) {
    if (!pace) return;
    pace.hidden = false;
    pace.className = `pace ${kind}`;
    if (pace.textContent !== text) pace.textContent = text;
  }

  // A part that somebody works in is not pulled away from under the hands.
  function isBusy() {
    const live = one("#live");
    if (!live) return true;
    const at = document.activeElement;
    return Boolean(
      all("input[name=id]:checked", live).length ||
      one("details[open]", live) ||
      one("dialog[open]") ||
      (at && live.contains(at) && at.matches("input:not([type=checkbox]), select, textarea")) ||
      (getSelection() && !getSelection().isCollapsed && live.contains(getSelection().anchorNode))
    );
  }

  function tick() {
    if (isBusy()) {
      say("held while you work here", "held");
    } else {
      say("live", "live");
      if (Date.now() >= notBefore) body.dispatchEvent(new Event("pulse:tick"));
    }
  }

  function open() {
    if (stream || !window.EventSource || document.hidden || !one("#live")) return;
    stream = new EventSource("/live");
    stream.addEventListener("tick", tick);
    stream.addEventListener("hello", () => say("live", "live"));
    stream.onerror = () => {
      say("not connected: trying again", "lost");
      if (stream && stream.readyState === EventSource.CLOSED) {
        close();
        setTimeout(open, 2000);
        // Refused: the session may be over. The answer to the live part leads to the login, unless somebody works here.
        if (!isBusy()) body.dispatchEvent(new Event("pulse:tick"));
      }
    };
  }

  function close() {
    if (stream) stream.close();
    stream = null;
  }

  document.addEventListener("visibilitychange", () => (document.hidden ? close() : open()));
  window.addEventListener("pagehide", close);
  window.addEventListener("pageshow", open);

  // A server that takes long is asked less often: at most a tenth of its time is spent on this page.
  let asked = 0;
  body.addEventListener("htmx:beforeRequest", () => { asked = Date.now(); });
  body.addEventListener("htmx:afterRequest", () => { notBefore = Date.now() + 9 * (Date.now() - asked); });
  body.addEventListener("htmx:sendError", () => say("not connected: trying again", "lost"));
  body.addEventListener("htmx:responseError", () => say("not shown: trying again", "lost"));
  body.addEventListener("htmx:beforeSwap", (event) => {
    // News asked for before somebody began to work here would undo what was ticked since.
    if (event.detail.target.id === "live" && event.detail.elt.id === "live" && isBusy()) {
      event.detail.shouldSwap = false;
      say("held while you work here", "held");
      return;
    }
    // A page that could not ask shows why, too.
    if (event.detail.xhr.status >= 400 && event.detail.xhr.responseText.includes('id="live"')) event.detail.shouldSwap = true;
  });
  body.addEventListener("htmx:afterSettle", count);

  // --- Ticking rows.

  function count() {
    const boxes = all("input[name=id]");
    const ticked = boxes.filter((box) => box.checked).length;
    const master = one("#tick-all");
    if (master) {
      master.hidden = false;
      master.checked = boxes.length > 0 && ticked === boxes.length;
      master.indeterminate = ticked > 0 && ticked < boxes.length;
    }
    const said = one("#ticked");
    const matching = one("input[name=all]");
    const verbs = one("#verbs");
    if (said) said.textContent = ticked ? `${ticked} ticked` : "";
    if (verbs && matching) verbs.hidden = !ticked && !matching.checked;
  }

  document.addEventListener("change", (event) => {
    if (event.target.id === "tick-all") all("input[name=id]").forEach((box) => { box.checked = event.target.checked; });
    if (event.target.matches("input[name=id], input[name=all], #tick-all")) count();
  });

  // A button that was pressed once is not pressed twice.
  document.addEventListener("submit", (event) => {
    if (event.target.method !== "post") return;
    if (event.target.dataset.sent) event.preventDefault();
    event.target.dataset.sent = "1";
    setTimeout(() => { delete event.target.dataset.sent; }, 3000);
  });

  // --- Keys.

  const help = one("#help");
  const helpButton = one("#help-button");
  if (helpButton && help) {
    helpButton.hidden = false;
    helpButton.addEventListener("click", () => help.showModal());
  }

  function move(step) {
    const rows = all("tr[data-row]").map((row) => one("a[href]", row)).filter(Boolean);
    if (!rows.length) return;
    const row = document.activeElement && document.activeElement.closest("tr[data-row]");
    const now = row ? rows.indexOf(one("a[href]", row)) : step > 0 ? -1 : rows.length;
    const next = rows[Math.max(0, Math.min(rows.length - 1, now + step))];
    next.focus();
    next.scrollIntoView({ block: "nearest" });
  }

  let wentAt = 0;
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.matches("input:not([type=checkbox]):not([type=radio]), select, textarea");
    if (event.key === "Escape" && typing) event.target.blur();
    if (typing || (help && help.open)) return;
    if (wentAt && Date.now() - wentAt < 1500) {
      wentAt = 0;
      const link = all("nav.side a").find((a) => a.dataset.key === event.key);
      if (link) { event.preventDefault(); location.assign(link.href); return; }
    }
    wentAt = 0;
    const row = document.activeElement && document.activeElement.closest("tr[data-row]");
    const box = row && one("input[name=id]", row);
    const actions = {
      "/": () => { const to = one("[data-search]"); if (to) { to.focus(); to.select(); } else location.assign("/jobs"); },
      g: () => { wentAt = Date.now(); },
      j: () => move(1),
      k: () => move(-1),
      x: () => { if (box) { box.checked = !box.checked; count(); } },
      r: () => location.reload(),
      "?": () => { if (help) help.showModal(); },
    };
    const act = actions[event.key];
    if (act) { event.preventDefault(); act(); }
  });

  // On a phone the menu and the tabs are rows that scroll: what is open is in sight.
  all("nav.side, .tabs").forEach((row) => {
    const here = one("[aria-current]", row);
    if (here) row.scrollLeft += here.getBoundingClientRect().right - row.getBoundingClientRect().right + 40;
  });

  count();
  open();
})();
