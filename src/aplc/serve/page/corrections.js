// Corrections: accept, reject and add labels, send them, and work through a queue. page.js, which is loaded before this
// file, shows the labels and calls judgeButtons for each; here is everything about what a person says of them.
"use strict";

const judged = new Map(); // label -> "accepted" or "rejected", of proposed labels
const added = new Map(); // label -> name, of labels that were not proposed
let canCorrect = false;
let reviewing = false;
let current = null; // the queue's document on the page: { position, id, text, total, done }

function clearCorrections() {
  judged.clear();
  added.clear();
  $("add").value = "";
  closeFound();
  showAdded();
}

function judge(label, verdict) {
  if (judged.get(label) === verdict) judged.delete(label);
  else judged.set(label, verdict);
  for (const item of $("labels").children) {
    for (const button of item.querySelectorAll("[data-verdict]")) {
      button.setAttribute("aria-pressed", String(judged.get(item.dataset.label) === button.dataset.verdict));
    }
  }
  showSummary();
}

function judgeButtons(tag) {
  if (!canCorrect) return [];
  return [
    ["accepted", "✓", "Accept"],
    ["rejected", "✗", "Reject"],
  ].map(([verdict, sign, word]) => {
    const button = element("button", "judge " + verdict, sign);
    button.type = "button";
    button.dataset.verdict = verdict;
    button.setAttribute("aria-label", word + " " + (tag.name ?? tag.label));
    button.setAttribute("aria-pressed", String(judged.get(tag.label) === verdict));
    button.addEventListener("click", () => judge(tag.label, verdict));
    return button;
  });
}

const labelsThat = (verdict) => [...judged].filter(([, given]) => given === verdict).map(([label]) => label);

function showSummary() {
  const counts = [labelsThat("accepted").length, labelsThat("rejected").length, added.size];
  $("summary").textContent = `${counts[0]} accepted, ${counts[1]} rejected, ${counts[2]} added`;
}

function showAdded() {
  $("added").replaceChildren(
    ...[...added].map(([label, name]) => {
      const button = element("button", "chip", name + " ✕");
      button.type = "button";
      button.setAttribute("aria-label", "Remove " + name);
      button.addEventListener("click", () => {
        added.delete(label);
        showAdded();
        $("add").focus();
      });
      const item = element("li", "");
      item.append(button);
      return item;
    }),
  );
  showSummary();
}

function add({ label, name }) {
  if (tagged.tags.some((tag) => tag.label === label)) judged.set(label, "accepted"); // it was proposed, further down
  else added.set(label, name);
  $("add").value = "";
  closeFound();
  showLabels();
  showAdded();
  $("add").focus();
}

// Search as you type: a combobox with a list, as the ARIA authoring practices describe it.
let searched = 0; // number of the newest search; answers to older ones are dropped
let found = [];
let active = -1;

function closeFound() {
  searched++;
  found = [];
  active = -1;
  $("found").hidden = true;
  $("add").setAttribute("aria-expanded", "false");
  $("add").removeAttribute("aria-activedescendant");
}

async function search() {
  const query = $("add").value.trim();
  if (!query) return closeFound();
  const number = ++searched;
  await new Promise((done) => setTimeout(done, 120)); // until the typing pauses
  if (number !== searched) return;
  try {
    const { labels } = await ask("labels?limit=8&query=" + encodeURIComponent(query));
    if (number !== searched) return;
    found = labels;
    activate(-1);
  } catch (error) {
    say(error.message, true);
  }
}

function activate(index) {
  active = index;
  $("found").replaceChildren(
    ...found.map((one, i) => {
      const item = element("li", "option", one.name);
      if (one.matched !== one.name) item.append(element("span", "muted", " · " + one.matched));
      item.id = "found-" + i;
      item.setAttribute("role", "option");
      item.setAttribute("aria-selected", String(i === active));
      item.addEventListener("mousedown", (event) => {
        event.preventDefault(); // the field keeps the focus
        add(one);
      });
      return item;
    }),
  );
  if (!found.length) $("found").append(element("li", "muted", "No such label"));
  $("found").hidden = false;
  $("add").setAttribute("aria-expanded", "true");
  if (active >= 0) $("add").setAttribute("aria-activedescendant", "found-" + active);
  else $("add").removeAttribute("aria-activedescendant");
}

function chooseByKey(event) {
  if (event.key === "Escape") closeFound();
  else if ((event.key === "ArrowDown" || event.key === "ArrowUp") && found.length) {
    const step = event.key === "ArrowDown" ? 1 : found.length - 1;
    activate(active < 0 && step > 1 ? found.length - 1 : (active + step) % found.length);
  } else if (event.key === "Enter" && !event.ctrlKey && !event.metaKey && found.length) add(found[Math.max(active, 0)]);
  else return;
  event.preventDefault();
}

async function send() {
  if (!canCorrect || !tagged || (current && tagged.text !== current.text)) return; // its labels are on the way
  const body = { text: tagged.text, accepted: labelsThat("accepted"), rejected: labelsThat("rejected"), added: [...added.keys()] };
  if (current?.id != null) body.id = current.id;
  if ($("reviewer").value.trim()) body.reviewer = $("reviewer").value.trim();
  if (!current && !judged.size && !added.size) return say("Accept, reject or add a label first.", true);
  $("send").disabled = true;
  try {
    const { new_labels: unknown = [] } = await ask("feedback", body);
    say(unknown.length ? `Stored. New to the model: ${unknown.join(", ")}.` : "Stored.");
    if (current) await showNext(current.position);
  } catch (error) {
    say(error.message, true);
  } finally {
    $("send").disabled = false;
  }
}

async function showNext(after) {
  try {
    current = await ask("review?after=" + after);
  } catch (error) {
    return say(error.message, true);
  }
  $("progress").max = current.total;
  $("progress").value = current.done;
  $("progress-text").textContent = `${current.done} of ${current.total} reviewed`;
  if (current.position === null) {
    current = null;
    for (const id of ["results", "explanation", "skip", "text-card"]) $(id).hidden = true;
    return say("All documents are reviewed.");
  }
  $("text").value = current.text;
  await tag();
  ($("labels").querySelector("button") ?? $("add")).focus();
}

const skip = () => current && showNext(current.position);

function moveInLabels(event) {
  const item = event.target.closest("#labels > li");
  if (!item) return false;
  if (event.key === "a") judge(item.dataset.label, "accepted");
  else if (event.key === "r") judge(item.dataset.label, "rejected");
  else if (event.key === "ArrowDown") item.nextElementSibling?.firstElementChild.focus();
  else if (event.key === "ArrowUp") item.previousElementSibling?.firstElementChild.focus();
  else return false;
  return true;
}

function onKey(event) {
  const typing = ["TEXTAREA", "INPUT"].includes(event.target.tagName) && event.target.type !== "range";
  const withControl = event.ctrlKey || event.metaKey;
  if (event.key === "Enter" && withControl && event.target.id !== "text") send();
  else if (typing || withControl || event.altKey || $("corrections").hidden) return;
  else if (event.key === "/") $("add").focus();
  else if (event.key === "s") skip();
  else if (!moveInLabels(event)) return;
  event.preventDefault();
}

// `health` is what the server says of itself.
function startCorrections(health) {
  canCorrect = health.feedback;
  $("corrections").hidden = !canCorrect;
  if (!canCorrect || !health.review) return;
  reviewing = true;
  $("review").hidden = $("skip-key").hidden = false;
  $("text").readOnly = true;
  showNext(-1);
}

document.addEventListener("keydown", onKey);
$("add").addEventListener("input", search);
$("add").addEventListener("keydown", chooseByKey);
$("add").addEventListener("blur", closeFound);
$("send").addEventListener("click", send);
$("skip").addEventListener("click", skip);
$("accept-all").addEventListener("click", () => {
  for (const tag of chosen()) if (!judged.has(tag.label)) judge(tag.label, "accepted");
});
