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
  let place = -1;  // of the point that the keyboard has reached
  const focus = number => {
    place = Math.max(0, Math.min(points.length - 1, number));
    const box = points[place].getBoundingClientRect();
    points[place].scrollIntoView({block: "nearest"});
    show({clientX: box.left + box.width / 2, clientY: box.top + box.height / 2});
  };
  if (points.length) {
    svg.tabIndex = 0;
    svg.setAttribute("aria-label", svg.getAttribute("aria-label") + ": move between its points by the arrow keys");
    svg.addEventListener("keydown", event => {
      const step = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1, Home: -points.length, End: points.length}[event.key];
      if (event.key === "Escape") clear();
      if (!step) return;
      event.preventDefault();
      focus(place + step);
    });
    svg.addEventListener("blur", () => { place = -1; clear(); });
  }
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
