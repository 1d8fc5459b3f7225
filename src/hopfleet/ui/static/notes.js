// Notes and tags of an experiment and of its trials.

import { html, useState } from "./vendor/htm-preact-3.1.1.js";
import { Dialog, usePage, useServer } from "./parts.js";
import { note } from "./session.js";

export const Tags = ({ tags }) => tags?.length > 0 && html`<span class="chips">${tags.map((tag) => html`<span class="chip">${tag}</span>`)}</span>`;

export function Notes({ feed, trial = "" }) {
  const { readOnly } = usePage();
  const [open, setOpen] = useState(false);
  const noted = feed.notes[trial];
  const silent = useServer() !== "online";
  if (readOnly && !noted) return null;
  return html`<div class="notes">
    <${Tags} tags=${noted?.tags} />
    ${noted?.note && html`<span class="note">${noted.note}</span>`}
    ${!readOnly && html`<button type="button" class="small quiet" disabled=${silent} onClick=${() => setOpen(true)}>${noted ? "Edit note…" : "Add a note or tags…"}</button>`}
    ${open && html`<${Edit} feed=${feed} trial=${trial} noted=${noted} onClose=${() => setOpen(false)} />`}
  </div>`;
}

function Edit({ feed, trial, noted, onClose }) {
  const [text, setText] = useState(noted?.note ?? "");
  const [tags, setTags] = useState((noted?.tags ?? []).join(", "));
  const [problem, setProblem] = useState("");
  const [busy, setBusy] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    if (busy) return;
    setBusy(true);
    try {
      feed.notes = await note(feed.key, trial, text, tags.split(",").filter((tag) => tag.trim()));
      feed.changed(true);
      onClose();
    } catch (error) {
      setProblem(error.message);
      setBusy(false);
    }
  };
  return html`<${Dialog} title=${trial ? `Note on ${trial}` : "Note on the experiment"} onClose=${onClose}>
    <form onSubmit=${submit}>
      <label>Tags, with commas between them <input value=${tags} onInput=${(event) => setTags(event.target.value)} /></label>
      <label>Note <textarea rows="6" maxlength="4000" value=${text} onInput=${(event) => setText(event.target.value)}></textarea></label>
      ${problem && html`<p class="bad" role="alert">${problem}</p>`}
      <div class="actions"><button type="button" onClick=${onClose}>Cancel</button><button type="submit" class="main" disabled=${busy}>Save</button></div>
    </form>
  </${Dialog}>`;
}
