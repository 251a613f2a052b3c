// The page at /: one request to tag, one to explain; the slider works on what is there. Text only ever becomes text
// (textContent), so nothing of a document or a label can run.
"use strict";

const TOP_K = 50; // more than a person reads; the slider cuts them
const $ = (id) => document.getElementById(id);
let tagged = null; // { text, tags }
let asked = 0; // number of the newest request; answers to older ones are dropped

function element(name, className, text) {
  const made = document.createElement(name);
  made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

function say(message, bad = false) {
  $("status").textContent = message;
  $("status").classList.toggle("bad", bad);
}

const percent = (p) => (p >= 0.0995 ? (100 * p).toFixed(0) : (100 * p).toFixed(1)) + " %";

async function ask(path, body) {
  const headers = {};
  if ($("token").value) headers.Authorization = "Bearer " + $("token").value;
  if (body) headers["Content-Type"] = "application/json";
  const answer = await fetch(path, { method: body ? "POST" : "GET", headers, body: body && JSON.stringify(body) });
  const value = await answer.json();
  if (answer.ok) return value;
  if (answer.status === 401) $("token-field").hidden = false;
  throw new Error(value.detail);
}

async function tag() {
  const text = $("text").value;
  if (!text.trim()) {
    say("Paste a text first.", true);
    $("text").focus();
    return;
  }
  const number = ++asked;
  $("tag").disabled = true;
  say("Tagging …");
  try {
    const { tags } = await ask("tag", { text, top_k: TOP_K });
    if (number !== asked) return;
    tagged = { text, tags };
    clearCorrections();
    say("");
    $("explanation").hidden = true;
    $("results").hidden = false;
    showLabels();
  } catch (error) {
    say(error.message, true);
  } finally {
    $("tag").disabled = false;
  }
}

const chosen = () => tagged.tags.filter((tag) => tag.probability >= Number($("threshold").value));

function showLabels() {
  const threshold = Number($("threshold").value);
  $("threshold-value").textContent = percent(threshold);
  $("threshold").setAttribute("aria-valuetext", percent(threshold));
  const n = chosen().length;
  $("count").textContent = n + (n === 1 ? " label" : " labels");
  const open = $("explanation").hidden ? null : $("explained").dataset.label;
  $("labels").replaceChildren(
    ...tagged.tags.filter((tag) => tag.probability >= threshold || judged.has(tag.label)).map((tag) => {
      const button = element("button", "label");
      button.type = "button";
      button.setAttribute("aria-pressed", String(tag.label === open));
      const bar = element("span", "bar");
      bar.append(element("i", ""));
      bar.firstChild.style.width = 100 * tag.probability + "%";
      button.append(
        element("span", "name", tag.name ?? tag.label),
        ...(tag.cluster ? [element("span", "cluster", tag.cluster)] : []),
        bar,
        element("span", "p", percent(tag.probability)),
      );
      button.addEventListener("click", () => explain(tag.label, button));
      const item = element("li", "");
      item.dataset.label = tag.label;
      item.append(button, ...judgeButtons(tag));
      return item;
    }),
  );
}

async function explain(label, button) {
  const number = ++asked;
  for (const other of $("labels").querySelectorAll(".label")) other.setAttribute("aria-pressed", "false");
  button.setAttribute("aria-pressed", "true");
  say("Leaving out words …");
  try {
    const explanation = await ask("explain", { text: tagged.text, label });
    if (number !== asked) return;
    say("");
    showWords(explanation);
  } catch (error) {
    if (number === asked) say(error.message, true);
  }
}

function showWords({ label, read, words }) {
  // The server counts characters, JavaScript UTF-16 units: an array of characters agrees with the server.
  const text = Array.from(tagged.text);
  const part = (start, stop) => text.slice(start, stop).join("");
  const most = Math.max(1e-6, ...words.map((word) => Math.abs(word.effect)));
  const pieces = [];
  let at = 0;
  for (const word of words) {
    pieces.push(part(at, word.start));
    const strength = Math.abs(word.effect) / most;
    const span = element("span", word.effect >= 0 ? "for" : "against", part(word.start, word.stop));
    span.style.backgroundColor = `rgb(var(--${span.className}) / ${(0.65 * strength).toFixed(3)})`;
    span.title = (word.effect >= 0 ? "+" : "−") + Math.abs(word.effect).toFixed(2);
    pieces.push(span);
    at = word.stop;
  }
  pieces.push(part(at, read), element("span", "cut", part(read)));
  $("cut-note").hidden = read >= text.length;
  $("words").replaceChildren(...pieces);
  $("explained").textContent = "Words that mattered for “" + label + "”";
  $("explained").dataset.label = label;
  $("explanation").hidden = false;
  $("explanation").scrollIntoView({ block: "nearest" });
}

async function copy() {
  const json = JSON.stringify({ text: tagged.text, threshold: Number($("threshold").value), tags: chosen() }, null, 2);
  try {
    await navigator.clipboard.writeText(json);
    say("Copied.");
  } catch {
    // No clipboard without https or permission: a selected field that the browser's own command copies.
    const field = element("textarea", "");
    field.value = json;
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    say(done ? "Copied." : "The browser does not allow copying.", !done);
  }
}

$("form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (reviewing && !current) showNext(-1); // the token was missing
  else tag();
});
$("text").addEventListener("keydown", (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) tag();
});
$("threshold").addEventListener("input", showLabels);
$("copy").addEventListener("click", copy);
document.addEventListener("DOMContentLoaded", () =>  // when corrections.js is there, too
  fetch("health")
    .then((answer) => answer.json())
    .then((health) => {
      $("about").textContent = `${health.model} · ${health.labels.toLocaleString("en")} labels · aplc ${health.version}`;
      document.title = `${health.model} · aplc`;
      if (health.warnings.length) say(health.warnings.join(" "), true);
      startCorrections(health);
    })
    .catch(() => say("The server does not answer.", true)),
);
