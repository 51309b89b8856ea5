// Everything is drawn once; then the page waits for keys, clicks and the printer.
drawMaps();
if (data.compared) drawDifferences();
drawRoles();
drawSizes();
drawCurves();
drawBudgets();
drawRelations();
drawHeads();

document.addEventListener("click", (event) => {
  const here = event.target.closest(".cell");
  if (here) openCard(Number(here.dataset.row), here);
});
document.addEventListener("keydown", (event) => {
  if (event.key === "Escape") {
    tip.hidden = true;
    closeCard();
  }
});
for (const name of ["pointerover", "focusin"]) document.addEventListener(name, showTip);
document.addEventListener("scroll", () => { tip.hidden = true; }, { passive: true, capture: true });
narrow.addEventListener("change", () => { document.getElementById("page").inert = narrow.matches && opened !== null; });

const theme = document.getElementById("theme");
const dark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";
const sayTheme = () => theme.setAttribute("aria-pressed", String(isDark()));
theme.addEventListener("click", () => { document.documentElement.dataset.theme = isDark() ? "light" : "dark"; sayTheme(); });
dark.addEventListener("change", sayTheme);
sayTheme();

let folded = [];
addEventListener("beforeprint", () => {
  folded = [...document.querySelectorAll("main details:not([open])")].filter((one) => !one.closest("#charts"));
  folded.forEach((one) => { one.open = true; });
});
addEventListener("afterprint", () => folded.forEach((one) => { one.open = false; }));

function openNamed() {
  const [, kind, layer, head] = /^#(.+)-(\d+)-(\d+)$/.exec(location.hash) ?? [];
  const named = heads.find((candidate) => candidate.kind === kind && candidate.layer === Number(layer) && candidate.head === Number(head));
  if (named) openCard(named.row);
}
addEventListener("hashchange", openNamed);
openNamed();
