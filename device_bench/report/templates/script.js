"use strict";
(() => {
  const $ = (id) => document.getElementById(id);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];

  // Theme: what the system says, or what the reader chose last; a file opened from disk may have no storage.
  const themes = ["system", "light", "dark"];
  const button = $("theme");
  const store = {
    get: () => { try { return localStorage.getItem("edgeport-theme"); } catch { return null; } },
    set: (v) => { try { localStorage.setItem("edgeport-theme", v); } catch { /* it is forgotten, no more */ } },
  };
  const apply = (theme) => {
    if (theme === "system") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    button.textContent = `Theme: ${theme}`;
  };
  let theme = themes.includes(store.get()) ? store.get() : "system";
  apply(theme);
  button.hidden = false;
  button.addEventListener("click", () => {
    theme = themes[(themes.indexOf(theme) + 1) % themes.length];
    store.set(theme);
    apply(theme);
  });

  // Decision table: filters and sorting.
  const table = $("decisions");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const filters = all("[data-filter]");
  const show = () => {
    let shown = 0;
    for (const row of rows) {
      row.hidden = filters.some((f) => f.value && row.dataset[f.dataset.filter] !== f.value);
      shown += row.hidden ? 0 : 1;
    }
    $("shown").textContent = `${shown} of ${rows.length} rows`;
  };
  for (const f of filters) f.addEventListener("change", show);
  $("controls").hidden = false;

  const value = (row, column) => {
    const cell = row.cells[column];
    return cell.dataset.v === undefined ? cell.textContent.trim() : cell.dataset.v === "" ? null : Number(cell.dataset.v);
  };
  // What has no value stays below, in either direction.
  const compare = (a, b, sign) => {
    if (a === null || b === null) return (a === null) - (b === null);
    return sign * (typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true }));
  };
  const heads = all("thead th", table);
  const sort = (column, direction) => {
    heads.forEach((h, i) => (i === column ? h.setAttribute("aria-sort", direction) : h.removeAttribute("aria-sort")));
    const sign = direction === "ascending" ? 1 : -1;
    const sorted = column < 0 ? rows : [...rows].sort((a, b) => compare(value(a, column), value(b, column), sign));
    body.append(...sorted);
  };
  heads.forEach((head, column) => {
    const control = head.querySelector("button");
    control.disabled = false;
    control.addEventListener("click", () =>
      sort(column, head.getAttribute("aria-sort") === "ascending" ? "descending" : "ascending"));
  });
  $("reset").addEventListener("click", () => {
    for (const f of filters) f.value = "";
    sort(-1, "");
    show();
  });
  show();

  // Devices: one at a time. Without this script, and on paper, all of them stand below each other.
  const tabs = all('[role="tab"]');
  if (tabs.length > 1) {
    const panels = tabs.map((t) => $(t.getAttribute("aria-controls")));
    const select = (index, focus) => {
      tabs.forEach((t, i) => {
        t.setAttribute("aria-selected", String(i === index));
        t.tabIndex = i === index ? 0 : -1;
        panels[i].classList.toggle("away", i !== index);
      });
      if (focus) tabs[index].focus();
    };
    tabs.forEach((t, i) => {
      panels[i].setAttribute("role", "tabpanel");
      panels[i].setAttribute("aria-labelledby", t.id);
      t.addEventListener("click", () => select(i, false));
      t.addEventListener("keydown", (event) => {
        const to = { ArrowRight: i + 1, ArrowLeft: i - 1, Home: 0, End: tabs.length - 1 }[event.key];
        if (to === undefined) return;
        event.preventDefault();
        select((to + tabs.length) % tabs.length, true);
      });
    });
    tabs[0].parentElement.hidden = false;
    const wanted = panels.findIndex((p) => `#${p.id}` === location.hash);
    select(Math.max(wanted, 0), false);
  }
})();
