// The only script of the page. The server renders all HTML; this puts it into its place as it changes.
"use strict";

const connection = document.getElementById("connection");
const RETRY_MS = 2000;
const RELEASE_MS = 100;

// --- times: the server sends UTC, the viewer sees the own zone

function showTimes(root) {
  for (const element of root.querySelectorAll("time[datetime]")) {
    const text = element.getAttribute("datetime");
    const date = new Date(text.replace(/(\.\d{3})\d*Z$/, "$1Z"));
    if (!Number.isNaN(date.getTime())) {
      element.textContent = date.toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" });
      element.title = text;
    }
  }
}

// --- parts: elements whose content the server sends again when it changes

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

function parts() {
  return [...document.querySelectorAll("[data-part]")].map((element) => element.id);
}

// Rows came or are gone: fetch the page, and replace the part that differs in structure.
async function refresh() {
  const answer = await fetch(location.href, { headers: { accept: "text/html" } });
  if (!answer.ok || answer.redirected) return say("reload the page: it is not available as it was");
  const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
  const old = [...document.querySelectorAll("tbody:has(> [data-part])")];
  const now = [...fresh.querySelectorAll("tbody:has(> [data-part])")];
  if (old.length === now.length && now.length > 0) {
    old.forEach((element, at) => put(element, now[at].innerHTML));
  } else {
    location.reload();
  }
}

function say(text) {
  if (connection.textContent !== text) connection.textContent = text;
}

// --- streams: reopened when they break, closed while the page is hidden

function stream(address, listeners, opened) {
  let source = null;
  let timer = 0;
  const open = () => {
    source = new EventSource(address());
    source.onopen = () => { say("live"); if (opened) opened(); };
    source.onerror = () => {
      say("connection lost, trying again");
      if (source !== null && source.readyState === EventSource.CLOSED) {
        close();
        timer = setTimeout(open, RETRY_MS);
      }
    };
    for (const [name, listener] of Object.entries(listeners)) {
      source.addEventListener(name, (event) => listener(JSON.parse(event.data), event));
    }
  };
  const close = () => {
    clearTimeout(timer);
    if (source !== null) source.close();
    source = null;
  };
  return { open, close, isOpen: () => source !== null };
}

const events = document.body.dataset.events;
const page = events && stream(() => events, {
  all: (html) => {
    const there = parts();
    const same = there.length === Object.keys(html).length && there.every((name) => name in html);
    if (!same) { refresh(); return; }
    for (const [name, text] of Object.entries(html)) put(document.getElementById(name), text);
  },
  some: (html) => {
    for (const [name, text] of Object.entries(html)) {
      const element = document.getElementById(name);
      if (element !== null) put(element, text);
    }
  },
  gone: () => { page.close(); say("this is not available any more; reload the page"); },
});

document.addEventListener("visibilitychange", () => {
  if (!page) return;
  if (document.visibilityState !== "visible") {
    page.close();
    say("");
  } else if (!page.isOpen()) {
    page.open();
  }
});

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
if (page) page.open();
