// What the page can do beyond being read: it needs none of this, and fetches nothing.
"use strict";

const NEAR = 40;        // pixels from the pointer to a value that is shown
const UNKNOWN = "-";    // what a table has for it
const kept = { open: {}, sorted: {}, paused: false, ...history.state };  // over a renewal
const keep = () => history.replaceState(kept, "");

const all = (selector, within = document) => [...within.querySelectorAll(selector)];

function element(name, attributes = {}, ...inside) {
  const made = Object.assign(document.createElement(name), attributes);
  made.append(...inside);
  return made;
}

// Tables: a click on a column's name sorts by it, a second one the other way.

function value(cell) {
  const text = cell.textContent.trim();
  const isNumber = /^[-+]?\d/.test(text) && !/^\d{4}-\d\d-/.test(text);
  return isNumber ? parseFloat(text) : text;
}

function compare(one, other) {
  if (typeof one === typeof other)
    return typeof one === "number" ? one - other
                                   : one.localeCompare(other, "en", { numeric: true });
  return typeof one === "number" ? -1 : 1;
}

function sort(table, column, order) {
  const body = table.tBodies[0], sign = order === "ascending" ? 1 : -1;
  const rows = [...body.rows].map(row => [value(row.cells[column]), row]);
  rows.sort(([one], [other]) => (one === UNKNOWN) - (other === UNKNOWN)  // comes last
                                || sign * compare(one, other));
  body.append(...rows.map(([, row]) => row));
  all("thead th", table).forEach((head, place) =>
    place === column ? head.setAttribute("aria-sort", order) : head.removeAttribute("aria-sort"));
}

function makeSortable(table) {
  const name = table.getAttribute("aria-labelledby");
  if (kept.sorted[name]?.[0] < table.tHead.rows[0].cells.length)
    sort(table, ...kept.sorted[name]);
  all("thead th", table).forEach((head, column) => {
    const button = element("button", { type: "button", title: "sort by this column" },
                           ...head.childNodes);
    button.onclick = () => {
      const before = head.getAttribute("aria-sort");
      const order = before === "ascending" ? "descending" : "ascending";
      sort(table, column, order);
      kept.sorted[name] = [column, order];
      keep();
    };
    head.append(button);
  });
}

// Figures: the value nearest to the pointer; with the arrow keys one after the other.

function showValues(plot) {
  const spots = JSON.parse(plot.dataset.spots);
  const ring = element("span", { className: "spot", hidden: true });
  const words = element("span", { className: "value", hidden: true });
  words.setAttribute("role", "status");
  let current = -1;

  function show(place) {
    current = place;
    ring.hidden = words.hidden = place < 0;
    if (place < 0)
      return;
    const [x, y, text] = spots[place];
    words.textContent = text;
    ring.style.left = words.style.left = `${100 * x}%`;
    ring.style.top = words.style.top = `${100 * y}%`;
    const shift = y < 0.3 ? "1rem" : "calc(-100% - 1rem)";
    words.style.transform = `translate(${-100 * x}%, ${shift})`;
  }

  function nearest(event) {
    const box = plot.getBoundingClientRect();
    const far = ([x, y]) => Math.hypot(box.left + x * box.width - event.clientX,
                                       box.top + y * box.height - event.clientY);
    const distances = spots.map(far), least = Math.min(...distances);
    return least < NEAR ? distances.indexOf(least) : -1;
  }

  plot.append(ring, words);
  plot.tabIndex = 0;
  plot.setAttribute("role", "group");
  plot.setAttribute("aria-label", "values of the figure: arrow keys step through them");
  plot.onpointermove = plot.onpointerdown = event => show(nearest(event));
  plot.onpointerleave = event => event.pointerType === "touch" || show(-1);
  plot.onblur = () => show(-1);
  plot.onkeydown = event => {
    const step = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (step) {
      show((current + step + spots.length + (current < 0 && step < 0)) % spots.length);
      event.preventDefault();
    } else if (event.key === "Escape") {
      show(-1);
    }
  };
}

function enlarge(figure) {
  const plot = figure.querySelector(".plot").cloneNode(true);
  all(".spot, .value", plot).forEach(each => each.remove());
  const dialog = element("dialog");
  let width = 100;
  const zoom = factor => {
    width = Math.min(1600, Math.max(25, width * factor));
    plot.style.width = `${width}%`;
  };
  const button = (text, label, onclick) => {
    const made = element("button", { type: "button", textContent: text, onclick });
    made.setAttribute("aria-label", label);
    return made;
  };
  const inside = element("div", { className: "inside", tabIndex: 0 }, plot);
  dialog.setAttribute("aria-label", plot.querySelector("img").alt);
  dialog.append(button("close", "close", () => dialog.close()), " ",
                button("+", "larger", () => zoom(1.5)), " ",
                button("\u2212", "smaller", () => zoom(1 / 1.5)), inside);
  dialog.onclose = () => dialog.remove();
  document.body.append(dialog);
  if (plot.dataset.spots)
    showValues(plot);
  dialog.showModal();
}

function makeEnlargeable(figure) {
  const button = element("button", { type: "button", textContent: "enlarge" });
  button.setAttribute("aria-label", `enlarge: ${figure.querySelector("img").alt}`);
  button.onclick = () => enlarge(figure);
  figure.append(button);
}

// While runs go on the page is written anew, and loads itself again where the reader was.

const focusable = () => all("a, button, summary, [tabindex]");
const isRead = () => document.querySelector("dialog, .value:not([hidden])") || `${getSelection()}`;

function age() {
  const drawn = Date.parse(document.querySelector("footer time").dateTime);
  const seconds = Math.max(0, Math.round((Date.now() - drawn) / 1000));
  return seconds < 120 ? `${seconds} s` : `${Math.round(seconds / 60)} min`;
}

function refresh(seconds) {
  const words = element("span"), button = element("button", { type: "button" });
  const bar = element("div", { className: "live" }, words, " ", button);
  const say = () => {
    const what = kept.paused ? "Paused" : isRead() ? "Waiting while you read"
                             : "This page renews itself while runs go on";
    words.textContent = `${what}: drawn ${age()} ago.`;
    button.textContent = kept.paused ? "go on renewing" : "pause";
  };
  button.onclick = () => { kept.paused = !kept.paused; keep(); say(); };
  bar.setAttribute("role", "region");
  bar.setAttribute("aria-label", "renewal");
  document.body.prepend(bar);
  say();
  let left = seconds;
  setInterval(() => {
    say();
    left -= 1;
    if (left <= 0 && !kept.paused && !document.hidden && !isRead())
      leaveForAgain();
  }, 1000);
}

const topOf = section => section.getBoundingClientRect().top;

function leaveForAgain() {
  const section = all("section").findLast(each => topOf(each) < innerHeight / 2);
  Object.assign(kept, { again: true, scroll: scrollY, section: section?.id,
                        top: section && topOf(section),
                        focus: focusable().indexOf(document.activeElement) });
  keep();
  history.scrollRestoration = "manual";
  location.reload();
}

function returnToPlace() {
  focusable()[kept.focus]?.focus({ preventScroll: true });
  const section = kept.section && document.getElementById(kept.section);
  scrollTo(0, section ? scrollY + topOf(section) - kept.top : kept.scroll);
  history.scrollRestoration = "auto";
  kept.again = false;
  keep();
}

document.documentElement.classList.add("js");
all("details").forEach(each => {
  each.open = kept.open[each.id] ?? each.open;
  each.ontoggle = () => { kept.open[each.id] = each.open; keep(); };
});
all("table").filter(each => each.tBodies[0].rows.length > 1).forEach(makeSortable);
all("figure").forEach(makeEnlargeable);
all(".plot[data-spots]").forEach(showValues);
if (document.body.dataset.refresh)
  refresh(Number(document.body.dataset.refresh));
if (kept.again)
  returnToPlace();
