// Every point has its text in a <title>. It is taken out, so that browsers do not show it as well, and shown for the points
// that are nearest to the pointer, which serves a finger as well as a mouse.
const tip = document.getElementById("tip");
let shown = [];
const clear = () => { for (const mark of shown) mark.classList.remove("on"); shown = []; tip.hidden = true; };
for (const svg of document.querySelectorAll("svg")) {
  const points = [...svg.querySelectorAll(".point")].map(mark => {
    const title = mark.querySelector("title");
    mark.dataset.tip = title.textContent;
    mark.setAttribute("aria-label", title.textContent);
    title.remove();
    return mark;
  });
  const show = event => {
    let found = [], least = 32;
    for (const mark of points) {
      const box = mark.getBoundingClientRect();
      const dx = Math.max(box.left - event.clientX, 0, event.clientX - box.right);
      const dy = Math.max(box.top - event.clientY, 0, event.clientY - box.bottom);
      const away = Math.hypot(dx, dy);
      if (away < least) { found = found.filter(other => other[1] <= away + 1); least = away; }
      if (away <= least + 1) found.push([mark, away]);
    }
    clear();
    if (!found.length) return;
    shown = found.filter(other => other[1] <= least + 1).map(other => other[0]);
    for (const mark of shown) mark.classList.add("on");
    tip.textContent = shown.map(mark => mark.dataset.tip).join("\n");
    tip.hidden = false;
    const box = shown[0].getBoundingClientRect();
    const left = box.left + box.width / 2 - tip.offsetWidth / 2;
    const room = document.documentElement.clientWidth - tip.offsetWidth - 4;
    tip.style.left = scrollX + Math.max(4, Math.min(left, room)) + "px";
    const above = box.top - tip.offsetHeight - 8;
    tip.style.top = scrollY + (above > 0 ? above : box.bottom + 8) + "px";
  };
  svg.addEventListener("pointermove", show);
  svg.addEventListener("pointerdown", show);
  svg.addEventListener("pointerleave", event => { if (event.pointerType === "mouse") clear(); });
}
addEventListener("pointerdown", event => { if (!event.target.closest("svg")) clear(); });
let closed = [];
addEventListener("beforeprint", () => {
  closed = [...document.querySelectorAll("details:not([open])")];
  for (const part of closed) part.open = true;
});
addEventListener("afterprint", () => { for (const part of closed) part.open = false; });
