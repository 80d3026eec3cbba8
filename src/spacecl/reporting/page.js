// Every point has its text in a <title>. The script removes it, so that browsers do not show it themselves, and shows the texts
// of the points that are nearest to the pointer, which works for a finger as well as for a mouse.
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
    const nearest = [];
    let least = 32;  // pixels
    for (const mark of points) {
      const box = mark.getBoundingClientRect();
      const dx = Math.max(box.left - event.clientX, 0, event.clientX - box.right);
      const dy = Math.max(box.top - event.clientY, 0, event.clientY - box.bottom);
      const distance = Math.hypot(dx, dy);
      least = Math.min(least, distance);
      if (distance <= least + 1) nearest.push([mark, distance]);
    }
    clear();
    shown = nearest.filter(([, distance]) => distance <= least + 1).map(([mark]) => mark);
    if (!shown.length) return;
    for (const mark of shown) mark.classList.add("on");
    tip.textContent = shown.map(mark => mark.dataset.tip).join("\n");
    tip.hidden = false;
    const box = shown[0].getBoundingClientRect();
    const left = box.left + box.width / 2 - tip.offsetWidth / 2;
    const most = document.documentElement.clientWidth - tip.offsetWidth - 4;
    tip.style.left = scrollX + Math.max(4, Math.min(left, most)) + "px";
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
