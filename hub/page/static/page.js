// The only script of the page. The server renders all HTML; this asks for it again, and shows the elements that changed.
"use strict";

const connection = document.getElementById("connection");
const PATIENCE_MS = 30000;
const RELEASE_MS = 100;

// --- times: the server sends UTC, the viewer sees the own zone, and the date only of other days

function showTimes(root) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const text = element.getAttribute("datetime");
    const date = new Date(text.replace(/(\.\d{3})\d*Z$/, "$1Z"));
    if (!Number.isNaN(date.getTime())) {
      const day = date.toDateString() === new Date().toDateString() ? {} : { dateStyle: "medium" };
      element.textContent = date.toLocaleString(undefined, { ...day, timeStyle: "medium" });
      element.title = text;
    }
  }
}

// --- tables: on a narrow screen each row is a card, and each cell needs the name of its column

function label(root) {
  for (const row of root.querySelectorAll("tbody tr")) {
    const heads = row.closest("table").querySelectorAll("thead th");
    for (const cell of row.querySelectorAll("th, td:not([colspan])")) cell.dataset.label = heads[cell.cellIndex].textContent;
  }
}

// --- charts: of the values that this page has shown since it was opened; they need two that differ

const POINTS = 90;
const series = new Map();

function chart(fresh) {
  for (const { dataset } of fresh.querySelectorAll("[data-chart]")) {
    const points = series.get(dataset.chart) ?? [];
    series.set(dataset.chart, [...points, Number.parseFloat(dataset.value) || 0].slice(-POINTS));
  }
}

function draw(root) {
  for (const element of root.querySelectorAll("[data-chart]")) {
    const points = series.get(element.dataset.chart) ?? [];
    const top = Math.max(...points);
    if (points.length < 2 || top === Math.min(...points)) continue;
    const places = points.map((value, at) => `${(at * 100) / (points.length - 1)},${23 - (22 * value) / top}`);
    const line = `<polyline points="${places.join(" ")}"/>`;
    element.querySelector(".chart")?.remove();
    element.insertAdjacentHTML("beforeend", `<svg class="chart" viewBox="0 0 100 24" preserveAspectRatio="none" aria-hidden="true">${line}</svg>`);
  }
}

// --- parts: elements whose content is replaced when it changes

const postponed = new Map();

// A link that is replaced between the press and the release of a button is not clicked.
function put(element, html) {
  if (element.matches(":active")) {
    if (!postponed.has(element)) setTimeout(() => putPostponed(element), RELEASE_MS);
    postponed.set(element, html);
    return;
  }
  postponed.delete(element);
  const active = document.activeElement;
  const focused = element.contains(active) && active !== element ? active.getAttribute("href") : null;
  element.innerHTML = html;
  showTimes(element);
  label(element);
  draw(element);
  if (focused !== null) {
    for (const link of element.querySelectorAll("a[href]")) {
      if (link.getAttribute("href") === focused) link.focus({ preventScroll: true });
    }
  }
}

function putPostponed(element) {
  const html = postponed.get(element);
  if (html !== undefined && postponed.delete(element)) put(element, html);
}

function say(text) {
  if (connection.textContent !== text) connection.textContent = text;
  connection.classList.toggle("live", text.startsWith("live"));
}

// --- the page, asked for again and again while it is visible

const parts = [...document.querySelectorAll("[data-part]")];
const shown = new Map(parts.map((element) => [element, element.innerHTML]));
let asking = false;
let timer;

function live() {
  const every = Math.round(Number(document.body.dataset.live));
  say(every > 2 ? `live, every ${every} s` : "live");
}

async function ask() {
  const answer = await fetch(location.href, {
    headers: { accept: "text/html" },
    signal: AbortSignal.timeout(PATIENCE_MS),
  });
  if (answer.redirected) return say("signed out: reload the page");
  if (!answer.ok) return say("this is not available any more: reload the page");
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  for (const element of parts) {
    const html = fresh.getElementById(element.id).innerHTML;
    if (html !== shown.get(element)) put(element, html);
    shown.set(element, html);
  }
  chart(fresh);
  draw(document);
  document.body.dataset.live = fresh.body.dataset.live;  // how old the server lets its samples become
  live();
}

async function update() {
  if (asking || document.visibilityState !== "visible") return;
  clearTimeout(timer);
  asking = true;
  try {
    await ask();
  } catch {
    say("connection lost, trying again");
  }
  asking = false;
  timer = setTimeout(update, 1000 * document.body.dataset.live);
}

// --- keys

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.matches("input, select, textarea")) return;
  if (event.key === "/") {
    const search = document.querySelector("[data-search]");
    if (search !== null) { event.preventDefault(); search.focus(); }
  } else if (event.key === "o") {
    location.href = "/";
  }
});

showTimes(document);
label(document);
chart(document);
if ("live" in document.body.dataset) {
  live();
  timer = setTimeout(update, 1000 * document.body.dataset.live);
  document.addEventListener("visibilitychange", update);
}
