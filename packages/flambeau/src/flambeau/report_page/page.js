"use strict";
(() => {
  const root = document.documentElement;
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const show = (name) => { root.dataset.theme = name; };
  show(dark.matches ? "dark" : "light");
  dark.addEventListener("change", (event) => show(event.matches ? "dark" : "light"));
  document.getElementById("theme").addEventListener("click", () => {
    show(root.dataset.theme === "dark" ? "light" : "dark");
  });

  // A link to a kernel opens it.
  const open = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (target && target.tagName === "DETAILS") target.open = true;
  };
  window.addEventListener("hashchange", open);
  open();

  for (const picture of document.querySelectorAll(".picture")) {
    const svg = picture.querySelector("svg");
    const whole = svg.viewBox.baseVal;
    const full = { x: whole.x, y: whole.y, w: whole.width, h: whole.height };
    let view = {};
    const apply = () => svg.setAttribute("viewBox", `${view.x} ${view.y} ${view.w} ${view.h}`);
    const scale = () => Math.max(view.w / picture.clientWidth, view.h / picture.clientHeight);
    const fit = () => { view = { ...full }; apply(); };
    // At first the whole picture, but no smaller than can be read: then its upper end.
    const start = () => {
      fit();
      const most = 1.5;
      if (scale() > most) {
        const w = picture.clientWidth * most, h = picture.clientHeight * most;
        view = { x: full.x + (full.w - w) / 2, y: full.y, w, h };
        apply();
      }
    };
    const zoom = (factor, px = 0.5, py = 0.5) => {
      const next = Math.min(Math.max(view.w * factor, 60), full.w * 8) / view.w;
      view.x += view.w * (1 - next) * px;
      view.y += view.h * (1 - next) * py;
      view.w *= next;
      view.h *= next;
      apply();
    };
    start();
    picture.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey && document.activeElement !== picture) return;
      event.preventDefault();
      const box = picture.getBoundingClientRect();
      zoom(Math.exp(event.deltaY * 0.0015), (event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height);
    }, { passive: false });
    for (const button of picture.querySelectorAll("[data-zoom]")) {
      button.addEventListener("click", () => {
        if (button.dataset.zoom === "fit") fit();
        else zoom(button.dataset.zoom === "in" ? 0.7 : 1 / 0.7);
      });
    }
    const fingers = new Map();
    let moved = 0, apart = 0;
    picture.addEventListener("pointerdown", (event) => {
      if (event.target.closest("button")) return;
      fingers.set(event.pointerId, event);
      moved = 0;
    });
    picture.addEventListener("pointermove", (event) => {
      const before = fingers.get(event.pointerId);
      if (!before) return;
      const dx = event.clientX - before.clientX, dy = event.clientY - before.clientY;
      fingers.set(event.pointerId, event);
      moved += Math.abs(dx) + Math.abs(dy);
      if (moved > 4 && !picture.hasPointerCapture(event.pointerId)) picture.setPointerCapture(event.pointerId);
      if (fingers.size === 2) {
        const [a, b] = [...fingers.values()];
        const distance = Math.hypot(a.clientX - b.clientX, a.clientY - b.clientY);
        if (apart) zoom(apart / distance);
        apart = distance;
        return;
      }
      view.x -= dx * scale();
      view.y -= dy * scale();
      apply();
    });
    const up = (event) => { fingers.delete(event.pointerId); apart = 0; };
    picture.addEventListener("pointerup", up);
    picture.addEventListener("pointercancel", up);
    picture.addEventListener("pointerleave", up);
    picture.addEventListener("click", (event) => { if (moved > 4) event.preventDefault(); }, true);

    // The nodes of one kernel, and the edges of one node, light up together.
    const nodes = [...picture.querySelectorAll(".node")];
    const edges = [...picture.querySelectorAll(".edge")];
    const light = (node) => {
      picture.classList.toggle("hovering", Boolean(node && node.dataset.runs));
      for (const other of nodes) other.classList.toggle("lit", Boolean(node) && other.dataset.runs === node.dataset.runs);
      for (const edge of edges) {
        edge.classList.toggle("lit", Boolean(node) && (edge.dataset.from === node.dataset.node || edge.dataset.to === node.dataset.node));
      }
    };
    for (const node of nodes) {
      node.addEventListener("pointerenter", () => light(node));
      node.addEventListener("pointerleave", () => light(null));
    }
  }
})();
