"use strict";
(() => {
  const HEIGHT = 240;
  const COLORS = 8;
  const DASHES = [[], [6, 4], [2, 3]];
  const STYLES = ["solid", "dashed", "dotted"];
  const drawn = [];

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

  // As planc writes numbers: 13_909, or four digits.
  function written(value) {
    if (value == null) return "-";
    if (Math.abs(value) >= 1000) return Math.round(value).toString().replace(/\B(?=(\d{3})+$)/g, "_");
    return String(Number(value.toPrecision(4)));
  }

  function axis(extra) {
    return {
      stroke: () => color("--quiet"),
      grid: { stroke: () => color("--rule"), width: 1 },
      ticks: { stroke: () => color("--rule"), width: 1 },
      values: (chart, values) => values.map(written),
      ...extra,
    };
  }

  function series(one, index) {
    const stroke = () => color(`--curve-${index % COLORS}`);
    const found = { label: one.label, stroke, width: 1.5, spanGaps: true, value: (chart, value) => written(value) };
    if (one.line) return { ...found, dash: DASHES[index % DASHES.length], points: { show: false } };
    return { ...found, paths: () => null, points: { show: true, size: 7, stroke, fill: () => color("--ground") } };
  }

  function options(host, spec) {
    return {
      width: host.clientWidth,
      height: HEIGHT,
      padding: [null, 40, null, null],
      scales: { x: { time: false } },
      axes: [axis({ label: spec.by, labelSize: 20, space: 70 }), axis({ size: 70 })],
      series: [{ label: spec.by, value: (chart, value) => written(value) }, ...spec.series.map(series)],
      legend: { markers: { dash: (chart, index) => STYLES[(index - 1) % STYLES.length] } },
      cursor: { sync: { key: spec.by, scales: ["x", null] } },
    };
  }

  // Reads values and zooms by keys, as the mouse does.
  function keys(chart, by, output) {
    const steps = chart.data[0];
    const read = (index) => {
      const values = chart.series.slice(1).map((one, at) => [one.label, chart.data[at + 1][index]]);
      const texts = values.filter(([, value]) => value != null).map(([label, value]) => `${label} ${written(value)}`);
      output.textContent = `${by} ${written(steps[index])}: ${texts.join(", ")}`;
      chart.setCursor({ left: chart.valToPos(steps[index], "x"), top: chart.over.clientHeight / 2 });
    };
    const zoom = (factor) => {
      const [first, last] = [steps[0], steps[steps.length - 1]];
      const middle = steps[chart.cursor.idx ?? steps.length >> 1];
      const half = ((chart.scales.x.max - chart.scales.x.min) * factor) / 2;
      chart.setScale("x", { min: Math.max(first, middle - half), max: Math.min(last, middle + half) });
    };
    return (event) => {
      const at = chart.cursor.idx ?? -1;
      const last = steps.length - 1;
      const actions = {
        ArrowRight: () => read(Math.min(last, at + 1)),
        ArrowLeft: () => read(at < 0 ? last : Math.max(0, at - 1)),
        Home: () => read(0),
        End: () => read(last),
        "+": () => zoom(0.5),
        "-": () => zoom(2),
      };
      if (!(event.key in actions) || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      actions[event.key]();
    };
  }

  for (const host of document.querySelectorAll(".chart")) {
    const spec = JSON.parse(host.querySelector("script").textContent);
    const chart = new uPlot(options(host, spec), spec.data, host);
    // The output and the table below have the same for screen readers.
    chart.root.setAttribute("aria-hidden", "true");
    host.addEventListener("keydown", keys(chart, spec.by, host.parentElement.querySelector("output")));
    new ResizeObserver(() => chart.setSize({ width: host.clientWidth, height: HEIGHT })).observe(host);
    drawn.push(chart);
  }

  const redraw = () => drawn.forEach((chart) => chart.redraw(false));
  const printed = (on) => () => {
    document.documentElement.classList.toggle("printed", on);
    redraw();
  };
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  addEventListener("beforeprint", printed(true));
  addEventListener("afterprint", printed(false));
})();
