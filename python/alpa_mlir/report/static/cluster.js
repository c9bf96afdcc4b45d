// The cluster, host by host, every device in the colour of its stage.

/** The mesh and the position in it of every device that has one. */
function placeDevices() {
  const placed = new Map();
  data.meshes.forEach((mesh, number) => {
    let position = 0;
    for (const [first, count] of mesh.devices) {
      for (let i = 0; i < count; i++) placed.set(first + i, [number, position++]);
    }
  });
  return placed;
}

function coordinates(mesh, position) {
  const { shape, axes } = data.meshes[mesh];
  const found = [];
  for (let i = shape.length - 1; i >= 0; i--) {
    found.unshift(`${axes[i]}=${position % shape[i]}`);
    position = Math.floor(position / shape[i]);
  }
  return found.join(" ");
}

/** Hosts as the plan describes them, or all devices as one where it does not. */
function listHosts() {
  const hosts = [];
  let device = 0;
  for (const group of data.hosts) {
    for (let i = 0; i < group.count; i++) {
      hosts.push({ first: device, devices: group.devices, type: group.device_type, memory: group.memory_bytes });
      device += group.devices;
    }
  }
  const all = data.header.devices;
  return hosts.length ? hosts : [{ first: 0, devices: all, type: null, memory: null }];
}

/** The largest cells with which the map is not too high; better in columns of as many hosts each. */
function arrange(hosts, sizeOf) {
  let uneven = null;
  let last = null;
  for (const size of [30, 26, 22, 19, 16, 13]) {
    const [width, height] = sizeOf(size);
    const room = Math.max(1, Math.min(hosts, Math.floor(1206 / width)));
    const even = Array.from({ length: room }, (_, i) => room - i).find((c) => c >= room * 0.6 && hosts % c === 0);
    last = { size, columns: even || room };
    if (Math.ceil(hosts / last.columns) * height > 420) continue;
    if (even) return last;
    uneven = uneven || last;
  }
  return uneven || last;
}

function clusterMap() {
  const placed = placeDevices();
  const hosts = listHosts();
  const widest = Math.max(...hosts.map((host) => host.devices));
  const perLine = Math.min(widest, 32);
  const label = 34;
  const deepest = Math.ceil(widest / perLine);
  const { size, columns } = arrange(hosts.length, (cell) => [label + perLine * cell + 10, deepest * cell + 4]);
  const hostWidth = label + perLine * size + 10;
  const perColumn = Math.ceil(hosts.length / columns);
  const used = Math.ceil(hosts.length / perColumn);
  const rowHeight = deepest * size + 4;
  const width = used * hostWidth - 10;
  const drawing = svg("svg", {
    viewBox: `0 0 ${width} ${perColumn * rowHeight}`, width, height: perColumn * rowHeight, role: "img",
    "aria-label": `${plural(hosts.length, "host")}; the table below says which devices each stage has`, class: "map",
  });
  hosts.forEach((host, index) => {
    const x = Math.floor(index / perColumn) * hostWidth;
    const y = (index % perColumn) * rowHeight;
    const group = svg("g", { transform: `translate(${x} ${y})` });
    group.append(svg("text", { x: label - 6, y: size / 2 + 4, class: "host" }, host.type === null ? "" : `h${index}`));
    for (let i = 0; i < host.devices; i++) {
      const device = host.first + i;
      const place = placed.get(device);
      const colour = place ? meshColour(place[0]) : null;
      const cell = svg("rect", {
        x: label + (i % perLine) * size + 0.75, y: Math.floor(i / perLine) * size + 0.75, width: size - 1.5, height: size - 1.5,
        rx: 2.5, fill: colour || "none", class: colour ? "device" : "device idle", "data-device": device,
        "data-mesh": place ? place[0] : null,
      });
      group.append(cell);
      if (size >= 20) {
        group.append(svg("text", { x: label + (i % perLine) * size + size / 2, y: Math.floor(i / perLine) * size + size / 2 + 4,
          class: "number", fill: colour ? inkOn(colour) : null }, device));
      }
    }
    drawing.append(group);
  });
  drawing.addEventListener("pointermove", (e) => {
    const device = e.target.dataset ? e.target.dataset.device : undefined;
    if (device === undefined) return hideTip();
    const number = Number(device);
    const host = hosts.findIndex((h) => number >= h.first && number < h.first + h.devices);
    const place = placed.get(number);
    const type = hosts[host].type ? `host ${host}, ${hosts[host].type}, ${bytes(hosts[host].memory)}` : "the plan does not say its host";
    showTip(e.clientX, e.clientY, [`device ${device}`, type,
      place ? `${meshName(place[0])}, mesh ${place[0]} at ${coordinates(...place)}` : "not used"]);
  });
  drawing.addEventListener("pointerleave", hideTip);
  return drawing;
}

function deviceText(mesh) {
  return mesh.devices.map(([first, count]) => (count > 1 ? `${first}–${first + count - 1}` : `${first}`)).join(", ");
}

function hostsOf(mesh) {
  const hosts = listHosts();
  if (!data.hosts.length) return [];
  const found = new Set();
  let host = 0;
  for (const [first, count] of [...mesh.devices].sort((a, b) => a[0] - b[0])) {
    for (let device = first; device < first + count; device++) {
      while (host < hosts.length - 1 && device >= hosts[host].first + hosts[host].devices) host++;
      found.add(host);
    }
  }
  return [...found];
}

function axesText(mesh) {
  const several = mesh.shape.map((size, i) => [size, i]).filter(([size]) => size > 1);
  if (!several.length) return "one device";
  return el("span", { class: "axes" }, several.map(([size, i], place) => [
    place ? " × " : "",
    el("span", { class: "axis", style: { borderColor: axisColour(mesh.axes[i]) }, title: mesh.links[i] === "network" ? "between hosts" : mesh.links[i] === "host" ? "within hosts" : null },
      `${mesh.axes[i]} ${size}`),
  ]));
}

function drawCluster() {
  const map = clusterMap();
  const highlight = (mesh) => map.querySelectorAll(".device").forEach((cell) =>
    cell.classList.toggle("dim", mesh !== null && cell.dataset.mesh !== String(mesh)));
  const rows = data.stages.map((stage, number) => ({ stage, number, mesh: data.meshes[stage.mesh] }));
  const columns = [
    { name: "Stage", of: (r) => r.number, node: (r) => {
      const node = el("button", { type: "button", class: "chip", style: { background: stageColour(r.number), color: inkOn(stageColour(r.number)) }, "aria-label": `show stage ${r.number} on the map` }, r.number);
      for (const [event, mesh] of [["pointerenter", r.stage.mesh], ["focus", r.stage.mesh], ["pointerleave", null], ["blur", null]]) {
        node.addEventListener(event, () => highlight(mesh));
      }
      return node;
    } },
    { name: "Part of the model", of: (r) => r.stage.modules, class: "wide", node: (r) => el("code", {}, r.stage.modules || UNKNOWN) },
    { name: "Layers", of: (r) => r.stage.layers[0], text: (r) => `${ranges([...Array(r.stage.layers[1] - r.stage.layers[0]).keys()].map((i) => i + r.stage.layers[0]))}${r.stage.rematerialized_layers ? `, ${r.stage.rematerialized_layers} rematerialized` : ""}` },
    { name: "Mesh", of: (r) => r.stage.mesh, node: (r) => axesText(r.mesh) },
    { name: "Devices", of: (r) => r.mesh.devices[0][0], text: (r) => deviceText(r.mesh) },
    { name: "Hosts", of: (r) => hostsOf(r.mesh)[0], text: (r) => ranges(hostsOf(r.mesh)) || UNKNOWN },
    { name: "Forward", of: (r) => r.stage.forward_seconds, text: (r) => seconds(r.stage.forward_seconds), number: true },
    { name: "Backward", of: (r) => r.stage.backward_seconds, text: (r) => seconds(r.stage.backward_seconds), number: true },
    { name: "Update", of: (r) => r.stage.update_seconds, text: (r) => seconds(r.stage.update_seconds), number: true },
    { name: "Memory a device", of: (r) => r.stage.predicted_bytes, text: (r) => bytes(r.stage.predicted_bytes), number: true },
  ];
  section("cluster", "Stages on the cluster",
    "Each square is a device, each row a host. Devices of one colour run the same stage, or stages; forward and backward times are those of one micro-batch.",
    el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": "Map of the cluster" }, map),
    table(columns, rows, { caption: "Stages", most: 40 }));
}
