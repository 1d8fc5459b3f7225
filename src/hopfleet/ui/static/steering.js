// Buttons that steer an experiment. Each makes one request, shows the answer, and offers to undo it where that is possible.

import { html, useRef, useState } from "./vendor/htm-preact-3.1.1.js";
import { plural, short } from "./format.js";
import { Dialog, usePage, useServer } from "./parts.js";
import { ask, get } from "./session.js";

const pause = (milliseconds) => new Promise((resolve) => setTimeout(resolve, milliseconds));
const HOLD = 500; // milliseconds for which buttons rest after a click, so that a double click is one

// A function that makes one request at a time, and whether buttons rest. A dialog shows a refusal itself.
export function useSteering(feed) {
  const { tell } = usePage();
  const [rests, setRests] = useState(false);
  const lock = useRef(false);
  const silent = useServer() !== "online";
  async function send(request, args = {}, undo = null, shown = false) {
    if (lock.current) return null;
    lock.current = true;
    setRests(true);
    const held = pause(HOLD);
    const { granted, text } = await ask(feed.key, request, args);
    const back = granted && undo ? undo(text) : null;
    if (granted || !shown) tell({ text: granted ? text : `Refused: ${text}`, kind: granted ? "good" : "bad", undo: back && (() => held.then(() => send(...back))) });
    feed.asked++;
    feed.changed(true);
    await held;
    lock.current = false;
    setRests(false);
    return { granted, text };
  }
  return [send, rests || silent];
}

const created = (text) => {
  const found = /^(t\d+) /.exec(text);
  return found ? ["delete", { trial: found[1] }] : null;
};

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

// A form in a dialog. `act()` returns the answer to its request; a refusal is shown above the buttons.
function Form({ title, label, act, rests, onClose, disabled, children }) {
  const [problem, setProblem] = useState("");
  const busy = useRef(false);
  const submit = async (event) => {
    event.preventDefault();
    if (rests || disabled || busy.current) return;
    busy.current = true;
    setProblem("");
    const [answer] = await Promise.all([act(), pause(HOLD)]); // the second click of two must not hit what lies behind
    busy.current = false;
    if (answer?.granted) onClose(true);
    else if (answer) setProblem(answer.text);
  };
  return html`<${Dialog} title=${title} onClose=${() => onClose(false)}>
    <form onSubmit=${submit}>
      ${children}
      ${problem && html`<p class="bad" role="alert">Refused: ${problem}</p>`}
      <div class="actions">
        <button type="button" onClick=${() => onClose(false)}>Cancel</button>
        <button type="submit" class="main" disabled=${disabled || rests}>${label}</button>
      </div>
    </form>
  </${Dialog}>`;
}

export function ExperimentButtons({ feed }) {
  const { readOnly } = usePage();
  const [open, setOpen] = useState("");
  const [send, rests] = useSteering(feed);
  if (readOnly) return html`<p class="muted">read-only</p>`;
  const { header } = feed;
  const running = header.state === "running";
  const live = feed.workers.filter((worker) => worker.lost === null).length;
  const close = () => setOpen("");
  return html`<div class="buttons" role="group" aria-label="Steer the experiment">
    ${running &&
    (header.held
      ? html`<button type="button" disabled=${rests} onClick=${() => send("proceed", {}, () => ["pause"])}>Continue</button>`
      : html`<button type="button" disabled=${rests} onClick=${() => send("pause", {}, () => ["proceed"])}>Pause</button>`)}
    <button type="button" disabled=${rests} onClick=${() => setOpen("extend")}>Extend…</button>
    <button type="button" disabled=${rests} onClick=${() => setOpen("add")}>Add trial…</button>
    ${running &&
    html`<span class="joined" role="group" aria-label="Workers">
      <button type="button" aria-label="One worker less" disabled=${rests || live < 2} onClick=${() => send("workers", { count: "-1" }, () => ["workers", { count: "+1" }])}>−</button>
      <span>${plural(live, "worker")}</span>
      <button type="button" aria-label="One worker more" disabled=${rests} onClick=${() => send("workers", { count: "+1" }, () => ["workers", { count: "-1" }])}>+</button>
    </span>`}
    ${open === "extend" && html`<${Extend} send=${send} rests=${rests} onClose=${close} />`}
    ${open === "add" && html`<${Add} feed=${feed} send=${send} rests=${rests} onClose=${close} />`}
  </div>`;
}

function Extend({ send, rests, onClose }) {
  const [trials, setTrials] = useState("");
  const [epochs, setEpochs] = useState("");
  const act = () => send("extend", { trials: Number(trials || 0), epochs: Number(epochs || 0) }, null, true);
  return html`<${Form} title="Extend the search" label="Extend" act=${act} rests=${rests} onClose=${onClose} disabled=${!Number(trials) && !Number(epochs)}>
    <label>More trials <input type="number" min="0" value=${trials} onInput=${(event) => setTrials(event.target.value)} /></label>
    <label>More epochs for all trials <input type="number" min="0" value=${epochs} onInput=${(event) => setEpochs(event.target.value)} /></label>
    <p class="muted">This cannot be undone, but each trial can be stopped.</p>
  </${Form}>`;
}

function Add({ feed, send, rests, onClose }) {
  const [text, setText] = useState("");
  const leader = feed.header.best ?? feed.trials.keys().next().value;
  useState(() => {
    if (leader) get(`${feed.base}/trials/${encodeURIComponent(leader)}`).then(([, trial]) => setText(JSON.stringify(trial.full_config, null, 2)), () => {});
  });
  const act = async () => {
    let config;
    try {
      config = JSON.parse(text);
    } catch (error) {
      return { granted: false, text: `this is not JSON (${error.message})` };
    }
    return send("add", { config }, created, true);
  };
  return html`<${Form} title="Add a trial" label="Add" act=${act} rests=${rests} onClose=${onClose} disabled=${!text.trim()}>
    <label>The whole configuration, as JSON <textarea rows="12" spellcheck="false" value=${text} onInput=${(event) => setText(event.target.value)}></textarea></label>
  </${Form}>`;
}

export function TrialButtons({ feed, trial, onDeleted }) {
  const { readOnly } = usePage();
  const [open, setOpen] = useState("");
  const [send, rests] = useSteering(feed);
  if (readOnly) return null;
  const args = { trial: trial.id };
  const live = ["pending", "running", "paused"].includes(trial.state);
  const close = () => setOpen("");
  return html`<div class="buttons" role="group" aria-label=${`Steer ${trial.id}`}>
    ${live && html`<button type="button" disabled=${rests} onClick=${() => send("stop", args, () => ["resume", args])}>Stop</button>`}
    ${["stopped", "paused", "completed"].includes(trial.state) && html`<button type="button" disabled=${rests} onClick=${() => setOpen("resume")}>Resume…</button>`}
    <button type="button" disabled=${rests} onClick=${() => setOpen("clone")}>Clone…</button>
    ${live &&
    html`<button type="button" disabled=${rests} onClick=${() => send("prioritise", { ...args, level: trial.level + 1 }, () => ["prioritise", { ...args, level: trial.level }])}>Train first</button>`}
    <button type="button" class="danger" disabled=${rests} onClick=${() => setOpen("delete")}>Delete…</button>
    ${open === "resume" && html`<${Resume} trial=${trial} send=${send} rests=${rests} onClose=${close} />`}
    ${open === "clone" && html`<${Clone} trial=${trial} send=${send} rests=${rests} onClose=${close} />`}
    ${open === "delete" &&
    html`<${Form} title=${`Delete ${trial.id}?`} label=${`Delete ${trial.id}`} act=${() => send("delete", args, null, true)} rests=${rests} onClose=${(done) => (close(), done && onDeleted?.())}>
      <p>The trial and its models go; only the journal keeps a record. This cannot be undone.</p>
    </${Form}>`}
  </div>`;
}

const LATER = 10000; // milliseconds after which the server takes more requests

// The same request for several trials, one after the other.
export function BulkButtons({ feed, trials, onDone }) {
  const { readOnly, tell } = usePage();
  const [open, setOpen] = useState(false);
  const [done, setDone] = useState(null); // trials that were asked for so far
  const silent = useServer() !== "online";
  if (readOnly) return null;
  const live = trials.filter((trial) => ["pending", "running", "paused"].includes(trial.state));
  const rests = silent || done !== null;
  const all = async (chosen, request, what, args = () => ({})) => {
    const refused = [];
    let count = 0;
    setDone(0);
    for (const trial of chosen) {
      let answer = await ask(feed.key, request, { trial: trial.id, ...args(trial) });
      while (answer.later) {
        await pause(LATER);
        answer = await ask(feed.key, request, { trial: trial.id, ...args(trial) });
      }
      answer.granted ? count++ : refused.push(`${trial.id}: ${answer.text}`);
      setDone(count + refused.length);
    }
    setDone(null);
    feed.asked++;
    feed.changed(true);
    const why = refused.length ? `; ${refused.length} refused (${refused[0]})` : "";
    tell({ text: `${what} ${plural(count, "trial")}${why}`, kind: refused.length ? "bad" : "good" });
    return { granted: true, text: "" };
  };
  return html`<div class="buttons bulk" role="group" aria-label="Steer the pinned trials">
    <span class="muted" role="status">${done === null ? `${trials.length} pinned` : `${done} of ${trials.length}…`}</span>
    ${live.length > 0 && html`<button type="button" class="small" disabled=${rests} onClick=${() => all(live, "stop", "stopped")}>Stop ${live.length}</button>
      <button type="button" class="small" disabled=${rests} onClick=${() => all(live, "prioritise", "trains first:", (trial) => ({ level: trial.level + 1 }))}>Train ${live.length} first</button>`}
    <button type="button" class="small danger" disabled=${rests} onClick=${() => setOpen(true)}>Delete ${trials.length}…</button>
    <button type="button" class="small" onClick=${onDone}>Unpin</button>
    ${open &&
    html`<${Form} title=${`Delete ${plural(trials.length, "trial")}?`} label=${`Delete ${plural(trials.length, "trial")}`} act=${() => all(trials, "delete", "deleted")} rests=${rests} onClose=${(gone) => (setOpen(false), gone && onDone())}>
      <p>${trials.slice(0, 12).map((trial) => trial.id).join(", ")}${trials.length > 12 ? " and more" : ""}. The trials and their models go; only the journal keeps a record. This cannot be undone.</p>
    </${Form}>`}
  </div>`;
}

function Resume({ trial, send, rests, onClose }) {
  const [epochs, setEpochs] = useState(trial.state === "completed" ? String(trial.trained + Math.max(1, trial.epochs)) : "");
  const more = epochs ? { epochs: Number(epochs) } : {};
  const act = () => send("resume", { trial: trial.id, ...more }, () => ["stop", { trial: trial.id }], true);
  return html`<${Form} title=${`Resume ${trial.id}`} label="Resume" act=${act} rests=${rests} onClose=${onClose}>
    <p>It has trained for ${trial.trained} of ${plural(trial.epochs, "epoch")}.</p>
    <label>Train up to this epoch <input type="number" min=${trial.trained + 1} placeholder=${String(trial.epochs)} value=${epochs} onInput=${(event) => setEpochs(event.target.value)} /></label>
  </${Form}>`;
}

function Clone({ trial, send, rests, onClose }) {
  const before = Object.fromEntries(Object.entries(trial.config ?? trial.chosen).map(([key, value]) => [key, JSON.stringify(value)]));
  const [values, setValues] = useState(before);
  const [warm, setWarm] = useState(false);
  const [epochs, setEpochs] = useState("");
  const act = () => {
    const changes = Object.fromEntries(Object.entries(values).filter(([key, text]) => text !== before[key]).map(([key, text]) => [key, parsed(text)]));
    const more = epochs ? { epochs: Number(epochs) } : {};
    return send("clone", { trial: trial.id, changes, warm, ...more }, created, true);
  };
  return html`<${Form} title=${`Clone ${trial.id}`} label="Clone" act=${act} rests=${rests} onClose=${onClose}>
    <div class="fields">${Object.entries(values).map(
      ([key, text]) => html`<label class=${text !== before[key] ? "changed" : ""}><span title=${key}>${short(key, 40)}</span>
        <input value=${text} spellcheck="false" onInput=${(event) => setValues({ ...values, [key]: event.target.value })} /></label>`,
    )}</div>
    <label><input type="checkbox" checked=${warm} onChange=${(event) => setWarm(event.target.checked)} /> warm: go on from the last epoch of ${trial.id}</label>
    <label>Train up to this epoch <input type="number" min="1" placeholder=${String(trial.epochs)} value=${epochs} onInput=${(event) => setEpochs(event.target.value)} /></label>
  </${Form}>`;
}
