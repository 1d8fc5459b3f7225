// The files that a trial or an experiment left: a list with downloads, and its pictures.

import { html, useEffect, useState } from "./vendor/htm-preact-3.1.1.js";
import { moment, save, short, size } from "./format.js";
import { call } from "./session.js";

const PICTURES = 12; // pictures that are loaded at once
const LARGEST_PICTURE = 8 * 2 ** 20; // bytes
const LARGEST = 2 ** 30; // bytes that a browser is given; copy larger files from the run folder

const nameOf = (path) => path.slice(path.lastIndexOf("/") + 1);
const isPicture = (file) => file.type.startsWith("image/") && file.bytes <= LARGEST_PICTURE;
const load = async (feed, file) => (await call(`${feed.base}/file?path=${encodeURIComponent(file.path)}`)).blob();

export function Files({ feed, files }) {
  const [problem, setProblem] = useState("");
  if (!files.length) return null;
  const download = (file) => {
    setProblem("");
    load(feed, file).then((content) => save(nameOf(file.path), content, "application/octet-stream"), (error) => setProblem(error.message));
  };
  const pictures = files.filter(isPicture).slice(0, PICTURES);
  return html`<section class="card"><h3>Files</h3>
    ${problem && html`<p class="bad" role="alert">${problem}</p>`}
    ${pictures.length > 0 && html`<ul class="pictures">${pictures.map((file) => html`<li key=${`${file.path}|${file.time}`}><${Picture} feed=${feed} file=${file} onClick=${() => download(file)} /></li>`)}</ul>`}
    <div class="scroll tall" tabindex="0" role="region" aria-label="Files"><table><thead><tr><th scope="col">file</th><th scope="col" class="right">size</th><th scope="col">written</th><th scope="col"><span class="hidden">download</span></th></tr></thead>
      <tbody>${files.map((file) => html`<tr key=${file.path}><td class="wrap">${file.path}</td><td class="right">${size(file.bytes)}</td><td class="muted">${moment(file.time)}</td>
        <td>${file.bytes <= LARGEST ? html`<button type="button" class="small" aria-label=${`Download ${file.path}`} onClick=${() => download(file)}>download</button>` : "in the run folder"}</td></tr>`)}</tbody></table></div></section>`;
}

// The content comes with the session of this page, so it is loaded here and shown from memory.
function Picture({ feed, file, onClick }) {
  const [source, setSource] = useState("");
  useEffect(() => {
    let [gone, made] = [false, ""];
    load(feed, file).then(
      (content) => {
        if (gone) return;
        made = URL.createObjectURL(new Blob([content], { type: file.type }));
        setSource(made);
      },
      () => {},
    );
    return () => {
      gone = true;
      if (made) URL.revokeObjectURL(made);
    };
  }, [file.path, file.time]);
  return html`<button type="button" title="Download" onClick=${onClick}>${source && html`<img src=${source} alt=${`Picture ${nameOf(file.path)}`} />`}<span>${short(nameOf(file.path), 40)}</span></button>`;
}
