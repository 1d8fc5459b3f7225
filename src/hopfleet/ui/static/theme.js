// Runs before the first paint, so that the page does not flash in the other theme.
try {
  const chosen = localStorage.getItem("hopfleet-theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
} catch {
  // A browser may keep the storage from a page in a frame.
}
