drawSummary();
drawComparison();
drawTime();
drawCluster();
drawSharding();
drawTimeline();
drawMemory();
drawCommunication();
drawAlternatives();
drawCertificates();

const NAMES = { time: "Time", cluster: "Stages", sharding: "Shardings", timeline: "Timeline", memory: "Memory", certificates: "Proofs" };
const links = new Map(sections.map(([id, title]) => [id, el("a", { href: `#${id}` }, NAMES[id] || title)]));
document.getElementById("nav").append(...[...links.values()].map((link) => el("li", {}, link)));
const watcher = new IntersectionObserver((found) => {
  for (const entry of found) {
    if (!entry.isIntersecting) continue;
    links.forEach((link) => link.removeAttribute("aria-current"));
    links.get(entry.target.id).setAttribute("aria-current", "true");
  }
}, { rootMargin: "-15% 0px -75% 0px" });
for (const id of links.keys()) watcher.observe(document.getElementById(id));
document.documentElement.dataset.ready = "yes";
