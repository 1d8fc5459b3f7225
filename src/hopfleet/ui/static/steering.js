// Buttons that steer an experiment. Each makes one request, shows the answer, and offers to undo it where that is possible.

import { html, useState } from "./vendor/htm-preact-3.1.1.js";
import { short } from "./format.js";
import { Dialog, usePage } from "./parts.js";
import { ask, get } from "./store.js";

export function useSteering(feed) {
  const { tell } = usePage();
  return async function send(request, args = {}, undo = null) {
    const { granted, text } = await ask(feed.key, request, args);
    const back = granted && undo ? undo(text) : null;
    tell({ text: granted ? text : `Refused: ${text}`, kind: granted ? "good" : "bad", undo: back && (() => send(...back)) });
    feed.asked++;
    feed.changed(true);
    return granted;
  };
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

const Actions = ({ onClose, label, disabled }) => html`<div class="actions">
  <button type="button" onClick=${onClose}>Cancel</button>
  <button type="submit" class="main" disabled=${disabled}>${label}</button>
</div>`;

export function ExperimentButtons({ feed }) {
  const { readOnly } = usePage();
  const [open, setOpen] = useState("");
  const send = useSteering(feed);
  if (readOnly) return html`<p class="muted">read-only</p>`;
  const { header } = feed;
  const running = header.state === "running";
  const live = feed.workers.filter((worker) => worker.lost === null).length;
  const close = () => setOpen("");
  return html`<div class="buttons" role="group" aria-label="Steer the experiment">
    ${running &&
    (header.held
      ? html`<button type="button" onClick=${() => send("proceed", {}, () => ["pause"])}>Continue</button>`
      : html`<button type="button" onClick=${() => send("pause", {}, () => ["proceed"])}>Pause</button>`)}
    <button type="button" onClick=${() => setOpen("extend")}>Extend…</button>
    <button type="button" onClick=${() => setOpen("add")}>Add trial…</button>
    ${running &&
    html`<span class="joined" role="group" aria-label="Workers">
      <button type="button" aria-label="One worker less" disabled=${live < 2} onClick=${() => send("workers", { count: "-1" }, () => ["workers", { count: "+1" }])}>−</button>
      <span>${live} workers</span>
      <button type="button" aria-label="One worker more" onClick=${() => send("workers", { count: "+1" }, () => ["workers", { count: "-1" }])}>+</button>
    </span>`}
    ${open === "extend" && html`<${Extend} send=${send} onClose=${close} />`}
    ${open === "add" && html`<${Add} feed=${feed} send=${send} onClose=${close} />`}
  </div>`;
}

function Extend({ send, onClose }) {
  const [trials, setTrials] = useState("");
  const [epochs, setEpochs] = useState("");
  const submit = async (event) => {
    event.preventDefault();
    if (await send("extend", { trials: Number(trials || 0), epochs: Number(epochs || 0) })) onClose();
  };
  return html`<${Dialog} title="Extend the search" onClose=${onClose}>
    <form onSubmit=${submit}>
      <label>More trials <input type="number" min="0" value=${trials} onInput=${(event) => setTrials(event.target.value)} /></label>
      <label>More epochs for all trials <input type="number" min="0" value=${epochs} onInput=${(event) => setEpochs(event.target.value)} /></label>
      <p class="muted">This cannot be undone, but each trial can be stopped.</p>
      <${Actions} onClose=${onClose} label="Extend" disabled=${!Number(trials) && !Number(epochs)} />
    </form>
  </${Dialog}>`;
}

function Add({ feed, send, onClose }) {
  const [text, setText] = useState("");
  const [problem, setProblem] = useState("");
  const leader = feed.header.best ?? feed.trials.keys().next().value;
  useState(() => {
    if (leader) get(`${feed.base}/trials/${encodeURIComponent(leader)}`).then(([, trial]) => setText(JSON.stringify(trial.full_config, null, 2)), () => {});
  });
  const submit = async (event) => {
    event.preventDefault();
    try {
      if (await send("add", { config: JSON.parse(text) }, created)) onClose();
    } catch (error) {
      setProblem(`This is not JSON: ${error.message}`);
    }
  };
  return html`<${Dialog} title="Add a trial" onClose=${onClose}>
    <form onSubmit=${submit}>
      <label>The whole configuration, as JSON <textarea rows="12" spellcheck="false" value=${text} onInput=${(event) => setText(event.target.value)}></textarea></label>
      ${problem && html`<p class="bad" role="alert">${problem}</p>`}
      <${Actions} onClose=${onClose} label="Add" disabled=${!text.trim()} />
    </form>
  </${Dialog}>`;
}

export function TrialButtons({ feed, trial, onDeleted }) {
  const { readOnly } = usePage();
  const [open, setOpen] = useState("");
  const send = useSteering(feed);
  if (readOnly) return null;
  const args = { trial: trial.id };
  const live = ["pending", "running", "paused"].includes(trial.state);
  const close = () => setOpen("");
  return html`<div class="buttons" role="group" aria-label=${`Steer ${trial.id}`}>
    ${live && html`<button type="button" onClick=${() => send("stop", args, () => ["resume", args])}>Stop</button>`}
    ${["stopped", "paused", "completed"].includes(trial.state) && html`<button type="button" onClick=${() => setOpen("resume")}>Resume…</button>`}
    <button type="button" onClick=${() => setOpen("clone")}>Clone…</button>
    ${live &&
    html`<button type="button" onClick=${() => send("prioritise", { ...args, level: trial.level + 1 }, () => ["prioritise", { ...args, level: trial.level }])}>Train first</button>`}
    <button type="button" class="danger" onClick=${() => setOpen("delete")}>Delete…</button>
    ${open === "resume" && html`<${Resume} trial=${trial} send=${send} onClose=${close} />`}
    ${open === "clone" && html`<${Clone} trial=${trial} send=${send} onClose=${close} />`}
    ${open === "delete" &&
    html`<${Dialog} title=${`Delete ${trial.id}?`} onClose=${close}>
      <form onSubmit=${async (event) => (event.preventDefault(), (await send("delete", args)) && (close(), onDeleted?.()))}>
        <p>The trial and its models go; only the journal keeps a record. This cannot be undone.</p>
        <${Actions} onClose=${close} label=${`Delete ${trial.id}`} />
      </form>
    </${Dialog}>`}
  </div>`;
}

function Resume({ trial, send, onClose }) {
  const [epochs, setEpochs] = useState(trial.state === "completed" ? String(trial.trained + Math.max(1, trial.epochs)) : "");
  const submit = async (event) => {
    event.preventDefault();
    const more = epochs ? { epochs: Number(epochs) } : {};
    if (await send("resume", { trial: trial.id, ...more }, () => ["stop", { trial: trial.id }])) onClose();
  };
  return html`<${Dialog} title=${`Resume ${trial.id}`} onClose=${onClose}>
    <form onSubmit=${submit}>
      <p>It has trained for ${trial.trained} of ${trial.epochs} epochs.</p>
      <label>Train up to this epoch <input type="number" min=${trial.trained + 1} placeholder=${String(trial.epochs)} value=${epochs} onInput=${(event) => setEpochs(event.target.value)} /></label>
      <${Actions} onClose=${onClose} label="Resume" />
    </form>
  </${Dialog}>`;
}

function Clone({ trial, send, onClose }) {
  const before = Object.fromEntries(Object.entries(trial.config).map(([key, value]) => [key, JSON.stringify(value)]));
  const [values, setValues] = useState(before);
  const [warm, setWarm] = useState(false);
  const [epochs, setEpochs] = useState("");
  const submit = async (event) => {
    event.preventDefault();
    const changes = Object.fromEntries(Object.entries(values).filter(([key, text]) => text !== before[key]).map(([key, text]) => [key, parsed(text)]));
    const more = epochs ? { epochs: Number(epochs) } : {};
    if (await send("clone", { trial: trial.id, changes, warm, ...more }, created)) onClose();
  };
  return html`<${Dialog} title=${`Clone ${trial.id}`} onClose=${onClose}>
    <form onSubmit=${submit}>
      <div class="fields">${Object.entries(values).map(
        ([key, text]) => html`<label class=${text !== before[key] ? "changed" : ""}><span title=${key}>${short(key, 40)}</span>
          <input value=${text} spellcheck="false" onInput=${(event) => setValues({ ...values, [key]: event.target.value })} /></label>`,
      )}</div>
      <label><input type="checkbox" checked=${warm} onChange=${(event) => setWarm(event.target.checked)} /> warm: go on from the last epoch of ${trial.id}</label>
      <label>Train up to this epoch <input type="number" min="1" placeholder=${String(trial.epochs)} value=${epochs} onInput=${(event) => setEpochs(event.target.value)} /></label>
      <${Actions} onClose=${onClose} label="Clone" />
    </form>
  </${Dialog}>`;
}
