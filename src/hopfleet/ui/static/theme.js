// Runs before the first paint, so that the page does not flash in the other theme.
{
  const chosen = localStorage.getItem("hopfleet-theme");
  if (chosen) document.documentElement.dataset.theme = chosen;
}
